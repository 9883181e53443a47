/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which files lie below the top image?  See chain.c.
 */

#ifndef QCOW2_CHAIN_H
#define QCOW2_CHAIN_H

#include <stdbool.h>
#include <stddef.h>

#include "storage/hostfile.h"
#include "format/crypt.h"
#include "format/header.h"
#include "mapping/layers.h"

enum backing_policy {
  BACKING_FOLLOW,       /* what the header says */
  BACKING_DENY,         /* refuse images that have one */
  BACKING_PATH,         /* this file, whatever the header says */
};

/* About the external data file of the top image; those below it follow what their
 * headers say, unless DATA_FILE_DENY. */
enum data_file_policy {
  DATA_FILE_FOLLOW,     /* what the header says */
  DATA_FILE_DENY,       /* refuse images that have one */
  DATA_FILE_PATH,       /* this file, whatever the header says */
};

/* For all images of the chain that are encrypted. */
struct chain_secret {
  const char *passphrase;       /* NULL: none was given */
  size_t len;
  uint64_t most_rounds;         /* of hashing that trying it on an image may take; 0:
                                   LUKS_MAX_ROUNDS */
};

struct chain_options {
  enum backing_policy backing;
  const char *backing_path;     /* absolute; BACKING_PATH only */
  const char *backing_format;   /* "qcow2", "raw" or NULL; of the top image's
                                   backing file */
  enum data_file_policy data_file;
  const char *data_file_path;   /* absolute; DATA_FILE_PATH only */
  bool below_top;               /* not the top image's backing file is looked for */
  struct chain_secret secret;
  struct hostfile_options file; /* try_writable is ignored; lock: all of them */
};

/* Opens the image at PATH (as the user or a header gave it, made absolute),
 * reads and checks its header, and refuses by name what is not served.  *CIPHER: what
 * the passphrase unlocks; NULL if the image is not encrypted.
 * Returns 0 and *FILE, *HEADER, *CIPHER, or -1 (reported). */
extern int chain_open_image (const char *path, const struct hostfile_options *,
                             const struct chain_secret *,
                             struct hostfile **file, struct header *header,
                             struct crypt_cipher **cipher);

/* *PATH (to be freed) of the external data file of the image at OVERLAY; NULL if it has
 * none.  TOP: it is the top image.  -1: that is not clear, or not allowed (reported). */
extern int chain_data_file (const char *overlay, const struct header *,
                            const struct chain_options *, bool top, char **path);
/* Opens the external data file of the image FILE, which is about to become the next of
 * LAYERS; *DATA is NULL if it has none.  FILE_OPTIONS as for the image.  -1: reported. */
extern int chain_open_data_file (struct layers *, struct hostfile *file,
                                 const struct header *,
                                 const struct chain_options *,
                                 const struct hostfile_options *,
                                 struct hostfile **data);
/* The header of a file that should be an image.  0, or -1 (reported; errno EINVAL:
 * it is no good). */
extern int chain_read_header (struct hostfile *, struct header *);

/* *PATH (to be freed) and *FORMAT ("qcow2" or "raw") of what lies below the image at
 * OVERLAY; NULL if there is nothing.  H: its header, NULL if it is raw.  -1: that is not
 * clear, or not allowed (reported). */
extern int chain_below (const char *overlay, const struct header *h,
                        const struct chain_options *, char **path,
                        const char **format);
/* From the top image to the one below it. */
extern void chain_go_below_top (struct chain_options *);

#define CHAIN_MAX_LAYERS 4096

/* That many will be open. */
extern void chain_reserve_files (unsigned layers);

/* The path that NAME means as the backing file of the image at OVERLAY; to be freed.
 * NULL: none that is served (reported). */
extern char *chain_resolve_name (const char *overlay, const char *name);

/* Adds all that lies below the image at the bottom of LAYERS (which is the top image). */
extern int chain_open (struct layers *, const struct chain_options *);

#endif /* QCOW2_CHAIN_H */
