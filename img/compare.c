/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compare: do two images show the same?
 *
 * The core compares any two ends (difference.c there).  Here the result becomes the words
 * and the exit status of qemu-img.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "util/bytes.h"
#include "copy/difference.h"
#include "img/diskend.h"
#include "img/progress.h"

#define SECTOR 512

/* Exit statuses. */
enum { SAME = 0, DIFFERENT = 1, NOT_OPENED = 2, NOT_READ = 4 };

static const struct option
  option_first_format = {
    'f', "format", "FORMAT", "the format of the first image; without it, it is probed"
  },
  option_second_format = { 'F', "format-2", "FORMAT", "the same for the second image" },
  option_strict = {
    's', "strict", NULL, "sizes, and where the disks have holes, matter too"
  };

struct pair {
  struct imagefile *files[2];
  struct diskend disks[2];
};

static void
say (const struct arguments *a, const char *text)
{
  if (!is_given (a, &option_quiet))
    puts (text);
}

static int
say_offset (const struct arguments *a, const struct difference *d)
{
  if (is_given (a, &option_quiet))
    return DIFFERENT;
  if (d->kind)
    printf ("Strict mode: Offset %" PRIu64 " block status mismatch!\n", d->at);
  else
    printf ("Content mismatch at offset %" PRIu64 "!\n", d->at);
  return DIFFERENT;
}

/* A difference in the sector in which the shorter disk ends, at SIZE: is it within that
 * disk, or only behind its end? */
static int
judge_end (struct copy_end x, struct copy_end y, uint64_t size,
           const struct chunks_words *words, struct difference *d)
{
  x.size = y.size = size;
  if (difference_find (&x, &y, false, words, NULL, d) == -1)
    return -1;
  if (d->at == UINT64_MAX)
    d->at = size;
  return 0;
}

static int
compare (const struct arguments *a, const struct pair *p)
{
  const struct copy_end *const x = &p->disks[0].end, *const y = &p->disks[1].end;
  const struct chunks_words words = { .path = p->files[0]->given };
  const struct chunks_watch watch = PROGRESS_WATCH;
  const uint64_t least = min64 (x->size, y->size);
  const bool strict = is_given (a, &option_strict);
  struct difference d;
  int r;

  if (strict && x->size != y->size) {
    say (a, "Strict mode: Image size mismatch!");
    return DIFFERENT;
  }
  progress_begin (a, false);
  r = difference_find (x, y, strict, &words, &watch, &d);
  if (r == 0 && d.at < least && d.at + SECTOR > least && x->size != y->size)
    r = judge_end (*x, *y, least, &words, &d);
  progress_end (r == 0);
  if (r == -1)
    return NOT_READ;
  /* As for qemu-img, sizes are whole sectors. */
  if (d.at >= least &&
      div_up (x->size, SECTOR) != div_up (y->size, SECTOR))
    say (a, "Warning: Image size mismatch!");
  if (d.at != UINT64_MAX)
    return say_offset (a, &d);
  say (a, "Images are identical.");
  return SAME;
}

static int
open_pair (const struct arguments *a, const struct secrets *s, struct pair *p)
{
  const struct option *const formats[2] = { &option_first_format, &option_second_format };

  for (unsigned i = 0; i < 2; i++) {
    p->files[i] = imagefile_named (a, a->operands[i], value_of (a, formats[i]), s);
    if (p->files[i] == NULL || diskend_open (p->files[i], NULL, &p->disks[i]) == -1)
      return -1;
  }
  return 0;
}

static int
run (const struct arguments *a)
{
  struct secrets *s = secrets_read (a);
  struct pair p = { .files = { NULL, NULL } };
  const int status = s && open_pair (a, s, &p) == 0 ? compare (a, &p) : NOT_OPENED;

  for (unsigned i = 0; i < 2; i++) {
    diskend_close (&p.disks[i]);
    imagefile_free (p.files[i]);
  }
  secrets_free (s);
  return status;
}

static const struct option *const options[] = {
  &option_first_format, &option_second_format, &option_strict, &option_progress,
  &option_quiet, &option_force_share, &option_src_cache, IMAGE_OPTIONS, NULL
};

const struct command compare_command = {
  "compare", "IMAGE IMAGE",
  "Compare the disks of two images.  Exit status: 0 they are identical, 1 they are "
  "different, 2 wrong usage, or an image cannot be opened, 3 or more it cannot be read.",
  options, 2, 2, .usage = NOT_OPENED, .output_lost = NOT_READ, .run = run
};
