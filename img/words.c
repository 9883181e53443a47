/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the program speak?
 *
 * This is what the core asks of a front end: where messages go, and how a user says what
 * the core proposes.  A message is a line on stderr that begins with the program's name.
 *
 * Locks: none: a line is written by one call.
 */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/remedy.h"
#include "util/report.h"
#include "img/command.h"
#include "img/imagefile.h"
#include "img/progress.h"

void
report_line (enum report_level level, const char *text)
{
  KEEP_ERRNO_FOR_BLOCK;

  /* A user who has stopped it does not ask why it has failed. */
  if (level != REPORT_ERROR || progress_signal ())
    return;
  progress_hide ();
  fflush (stdout);              /* what was printed before comes first */
  fprintf (stderr, "%s%s%s\n", called, *called ? ": " : "", text);
}

bool
report_traces (enum report_trace what)
{
  (void) what;
  return false;
}

/* (What it does itself, a user need not be told.) */
bool
report_log (enum report_event what, const char *path, const char *text)
{
  (void) what, (void) path, (void) text;
  return false;
}

/* Does not need the backing file. */
#define REBASE "\"" PROGRAM " rebase -u -b FILE -F FORMAT IMAGE\""

static const char *const words[NR_REMEDIES] = {
  [REMEDY_AGAIN] = "run the command again",
  [REMEDY_ALLOW_URI] = "--allow-uri URI (or a shorter prefix) allows it",
  [REMEDY_BACKING_FILE] = REBASE " names another one",
  [REMEDY_BACKING_FILE_BELOW] = REBASE " names another one",
  [REMEDY_BACKING_FORMAT] = REBASE " states it",
  [REMEDY_BACKING_FORMAT_BELOW] = REBASE " states it",
  [REMEDY_DATA_FILE] = "use --image-opts with data-file.filename=PATH",
  [REMEDY_ERASE_LAST_KEY] = "--force permits that",
  [REMEDY_MARKED_CORRUPT] = "the image is marked corrupt: \"check -r all\" may help",
  [REMEDY_NAME_BACKING] = "it names another backing file; name this one first, with "
    "rebase -u",
  [REMEDY_NO_LOCK] = "if the filesystem does not support locks, -U reads without",
  [REMEDY_OVERWRITE] = "wipe the device first",
  [REMEDY_PASSPHRASE] = "--object secret,id=ID,file=NAME is required",
  [REMEDY_PASSPHRASE_BELOW] = "if it is not that of the image above, use --image-opts "
    "with backing.encrypt.key-secret=ID",
  [REMEDY_REPAIR] = "\"check -r all\" may help",
  [REMEDY_SHRINK] = "a smaller disk requires --shrink, which discards the data beyond the "
    "new size",
  [REMEDY_VERSION_3] = "add compat=1.1",
  [REMEDY_WRITE_NBD] = "NBD has no locks: an export is written only if it is the image that "
    "the command names",
};

/* What a command proposes that lacks the option which the words above name. */
static const struct { const struct option *option; const char *words; }
  instead[NR_REMEDIES] = {
    [REMEDY_DATA_FILE] = {
      &option_image_opts, "\"" PROGRAM " amend -o data_file=FILE\", with --image-opts, "
      "names another one"
    },
    [REMEDY_NO_LOCK] = { &option_force_share, "the filesystem may not support locks" },
    [REMEDY_PASSPHRASE_BELOW] = {
      &option_image_opts, "the images of the chain may have different passphrases: \""
      PROGRAM " check\" takes more than one, with --image-opts"
    },
  };

static const struct command *running;   /* NULL: none yet */

void
words_are_for (const struct command *command)
{
  running = command;
}

static bool
has_option (const struct command *command, const struct option *option)
{
  const struct option *const *o = command->options;

  while (*o && *o != option)
    o++;
  return *o != NULL;
}

const char *
remedy (enum remedy r)
{
  const struct option *const o = instead[r].option;

  return o && running && !has_option (running, o) ? instead[r].words : words[r];
}
