/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a user say what the core proposes?
 *
 * With parameters.  nbdkit-qcow2-img, which starts this plugin, sets NBDKIT_QCOW2_IMG in
 * the environment, because its users know only its options.
 *
 * Locks: none; the table is constant.
 */

#include <config.h>

#include <stdbool.h>
#include <stdlib.h>

#include "util/remedy.h"

/* Does not need the backing file. */
#define REBASE "\"nbdkit-qcow2-img rebase -u -b FILE -F FORMAT IMAGE\""
#define LOCKS "if the filesystem does not support locks, "
#define SMALLER "a smaller disk requires "
#define BEYOND ", which discards the data beyond the new size"
#define OTHER "it names another backing file; name this one first, with "

static const struct { const char *parameter, *option; } words[NR_REMEDIES] = {
  [REMEDY_ALLOW_URI] = { "allow-uri=URI (or a shorter prefix) allows it",
                         "--allow-uri URI (or a shorter prefix) allows it" },
  [REMEDY_BACKING_FILE] = { "backing=PATH names another one",
                            REBASE " names another one" },
  [REMEDY_BACKING_FILE_BELOW] = { REBASE " names another one",
                                  REBASE " names another one" },
  [REMEDY_BACKING_FORMAT] = { "use backing-format=qcow2 or backing-format=raw",
                              REBASE " states it" },
  [REMEDY_BACKING_FORMAT_BELOW] = { REBASE " states it", REBASE " states it" },
  [REMEDY_COMMIT_AGAIN] = { "the next start with commit= does all of it",
                            "run the command again" },
  [REMEDY_DATA_FILE] = { "use data-file=PATH",
                         "use data-file=PATH of nbdkit's qcow2 plugin" },
  [REMEDY_ERASE_LAST_KEY] = { "key-force=true permits that", "--force permits that" },
  [REMEDY_FLATTEN_AGAIN] = { "the next start with flatten=true resumes it",
                             "run the command again" },
  [REMEDY_NAME_BACKING] = { OTHER "rebase= and rebase-unsafe=true", OTHER "rebase -u" },
  [REMEDY_NO_LOCK] = { LOCKS "use lock=false", LOCKS "-U reads without" },
  [REMEDY_OVERWRITE] = { "overwrite=true would destroy it", "wipe the device first" },
  [REMEDY_PASSPHRASE] = { "passphrase= is required",
                          "--object secret,id=ID,file=NAME is required" },
  [REMEDY_PASSPHRASE_BELOW] = {
    "if it is not that of the image above, give passphrase= again, after that one",
    "if it is not that of the image above, use --image-opts with "
    "backing.encrypt.key-secret=ID"
  },
  [REMEDY_REBASE_AGAIN] = { "the next start with the same rebase= resumes it",
                            "run the command again" },
  [REMEDY_REPAIR] = { "check=repair may help", "\"check -r all\" may help" },
  [REMEDY_SHRINK] = { SMALLER "shrink=true" BEYOND, SMALLER "--shrink" BEYOND },
  [REMEDY_VERSION_3] = { "add compat=1.1", "add compat=1.1" },
  [REMEDY_WRITE_NBD] = { "NBD has no locks: lock=false permits writing if the server "
                         "admits no other client (for example with nbdkit's limit "
                         "filter)", "NBD has no locks" },
};

const char *
remedy (enum remedy r)
{
  const bool options = getenv ("NBDKIT_QCOW2_IMG") != NULL;

  return options ? words[r].option : words[r].parameter;
}
