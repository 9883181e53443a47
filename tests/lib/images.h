/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Images for C tests, made and judged by qemu-img and qemu-io.  See images.c.
 */

#ifndef TEST_IMAGES_H
#define TEST_IMAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/stubs.h"

/* A file's contents. */
struct blob {
  unsigned char *data;
  uint64_t len;
};

/* Makes a private directory under the current one and goes there; exits with 77 if the
 * tools are missing.  NAME: of the test. */
extern void images_enter (const char *name);
/* Removes it with all that is in it.  Not called when a test fails, so that the
 * images can be looked at. */
extern void images_leave (void);
/* Absolute path of a file there, to be freed. */
extern char *images_path (const char *name);

/* A program and its arguments. */
struct command {
  char *argv[80];
  int n;
};
extern void command_add (struct command *, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3)));
/* Runs it, with its output to the file "log", and returns its exit status.
 * Frees the arguments. */
extern int command_run (struct command *);
/* The same, and anything but success ends the test. */
extern void command_must (struct command *);

#define IMAGES_SECRET "open sesame"

/* One image file. */
struct image_spec {
  bool raw;                     /* else qcow2 */
  int version;                  /* 2 or 3 */
  uint64_t cluster_size;
  bool extended;                /* with subclusters; at least 16K, version 3 */
  unsigned refcount_bits;
  uint64_t size;
  const char *preallocation;    /* or NULL */
  bool compressed;              /* the first image_fill also makes compressed
                                   clusters */
  const char *backing;          /* file name, or NULL */
  bool backing_raw;
  const char *encrypt;          /* "aes" or "luks", with IMAGES_SECRET; or NULL */
  const char *data_file;        /* file name, or NULL */
  bool data_file_raw;
};
extern void image_create (const char *name, const struct image_spec *);
/* The image of that name, which comes from elsewhere, is to be opened like that. */
extern void image_remember (const char *name, const struct image_spec *);
/* N random changes with qemu-io: writes of all alignments with contents that
 * differ everywhere, zeros, discards. */
extern void image_fill (const char *name, const struct image_spec *,
                        struct rng *, int n);
/* Before image_create: makes a raw file "below", with N changes, that SPEC's image will
 * lie upon.  CONTENTS receives what it holds. */
extern void image_over_raw (struct image_spec *, struct rng *, uint64_t size,
                            int n, struct blob *contents);
extern void image_snapshot (const char *name, const char *snapshot);
/* Adds a persistent bitmap that follows changes.  GRANULARITY_BITS 0: QEMU's choice. */
extern void image_bitmap (const char *name, const char *bitmap,
                          unsigned granularity_bits);
/* It follows no more. */
extern void image_bitmap_disable (const char *name, const char *bitmap);
/* The header gets an extension that nobody knows, in front of all others: of a random
 * length, but mostly such that the data of the last one, or of one that is appended, lie
 * across two sectors.  Returns its length; 0: there is no room, or the image is of
 * version 2. */
extern uint64_t image_push_extensions (const char *name, struct rng *);
/* Is it there (LEN as returned), byte for byte? */
extern bool blob_has_pushed (const struct blob *, uint64_t len);
/* A few words for the log, without a newline. */
extern void image_print (const struct image_spec *);

/* What an independent reader sees: the whole guest contents, through all backing
 * files; of an internal snapshot unless NULL. */
extern void image_contents (const char *name, const char *snapshot,
                            struct blob *);
/* Is that what it sees? */
extern bool image_shows (const char *name, const char *snapshot,
                         const struct blob *expected);
/* qemu-img check's exit status. */
extern int image_check (const char *name);

extern void blob_load (const char *name, struct blob *);
extern void blob_save (const char *name, const struct blob *);
extern void blob_free (struct blob *);
extern bool blob_same (const struct blob *, const struct blob *);
/* A big-endian number of so many BYTES.  All is zeros behind the end, and stays so. */
extern uint64_t blob_get (const struct blob *, uint64_t at, unsigned bytes);
extern void blob_put (struct blob *, uint64_t at, uint64_t value, unsigned bytes);

#endif /* TEST_IMAGES_H */
