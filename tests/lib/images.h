/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Images for C tests, created and checked by qemu-img and qemu-io.  See images.c.
 */

#ifndef TEST_IMAGES_H
#define TEST_IMAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/stubs.h"

/* The contents of a file. */
struct blob {
  unsigned char *data;
  uint64_t len;
};

/* Makes a private directory below the current one and changes to it; exits with 77 if the
 * tools are missing.  NAME is the name of the test. */
extern void images_enter (const char *name);
/* Removes the directory and all files in it.  Not called when a test fails, so that the
 * images can be examined. */
extern void images_leave (void);
/* The absolute path of a file in it; the caller frees it. */
extern char *images_path (const char *name);

/* How many files there are in a directory. */
extern unsigned files_in (const char *path);

/* A program and its arguments. */
struct command {
  char *argv[80];
  int n;
};
/* Adds one word, or those that spaces separate. */
extern void command_add (struct command *, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3)));
extern void command_words (struct command *, const char *words);
/* Runs the command, with its output in the file "log", and returns its exit status.
 * Frees the arguments. */
extern int command_run (struct command *);
/* The same, but any failure ends the test. */
extern void command_must (struct command *);

#define IMAGES_SECRET "open sesame"

/* One image file. */
struct image_spec {
  bool raw;                     /* otherwise qcow2 */
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
/* Records how QEMU's tools must open the image NAME, which was not made by
 * image_create. */
extern void image_remember (const char *name, const struct image_spec *);
/* Makes N random changes with qemu-io: writes of all alignments with contents that differ
 * everywhere, zeros, discards. */
extern void image_fill (const char *name, const struct image_spec *,
                        struct rng *, int n);
/* To be called before image_create: makes a raw file "below", with N changes, as the
 * backing file of SPEC's image.  CONTENTS receives its contents. */
extern void image_over_raw (struct image_spec *, struct rng *, uint64_t size,
                            int n, struct blob *contents);
extern void image_snapshot (const char *name, const char *snapshot);
/* Adds a persistent bitmap that records changes.  GRANULARITY_BITS 0: QEMU's default. */
extern void image_bitmap (const char *name, const char *bitmap,
                          unsigned granularity_bits);
/* Makes the bitmap stop recording. */
extern void image_bitmap_disable (const char *name, const char *bitmap);
/* Adds an extension of unknown type to the header, before all others.  Its length is
 * random, but usually such that the data of the last extension, or of one that is
 * appended, crosses a sector boundary.  Returns its length; 0 if there is no space, or
 * the image is of version 2. */
extern uint64_t image_push_extensions (const char *name, struct rng *);
/* The data of the extension of this type in the header of an image of version 3, with a 0
 * behind it; to be freed.  NULL: there is none. */
extern char *blob_extension (const struct blob *, uint32_t type);
/* Is that extension (LEN as returned) still there, byte for byte? */
extern bool blob_has_pushed (const struct blob *, uint64_t len);
/* Prints a few words for the log, without a newline. */
extern void image_print (const struct image_spec *);

/* The whole guest contents as QEMU reads them, through all backing files; those of an
 * internal snapshot unless SNAPSHOT is NULL. */
extern void image_contents (const char *name, const char *snapshot,
                            struct blob *);
/* Does QEMU read these contents? */
extern bool image_shows (const char *name, const char *snapshot,
                         const struct blob *expected);
/* Sets bits of the features at AT of the header. */
extern void image_mark (const char *name, uint64_t at, uint64_t bits);
/* The exit status of qemu-img check. */
extern int image_check (const char *name);

extern void blob_load (const char *name, struct blob *);
extern void blob_save (const char *name, const struct blob *);
/* A copy, which the caller frees; of another length: cut off, or with zeros at its
 * end. */
extern struct blob blob_copy (const struct blob *);
extern struct blob blob_resized (const struct blob *, uint64_t len);
extern void blob_free (struct blob *);
extern bool blob_same (const struct blob *, const struct blob *);
/* A big-endian number of BYTES bytes.  Bytes behind the end are zeros, and stay zeros. */
extern uint64_t blob_get (const struct blob *, uint64_t at, unsigned bytes);
extern void blob_put (struct blob *, uint64_t at, uint64_t value, unsigned bytes);

#endif /* TEST_IMAGES_H */
