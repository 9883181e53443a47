/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which files lie below the top image, and may we read them?
 *
 * Specification: "Header" (backing_file_offset), "Header extensions" (backing
 * format).
 *
 * Names are resolved as QEMU does: a relative name is relative to the directory of the
 * name by which the overlay was opened, symbolic links in it not followed.
 * The "file:" prefix is understood; other protocols and "json:" are not files
 * and are refused.  A format is never probed: an image that does not say what its
 * backing file is could make us read any raw file as an image, and the reverse.
 *
 * An external data file is never anything but raw, so it needs no format.  QEMU looks for
 * a relative name in its working directory, others next to the image, as for backing
 * files.  Wherever it is, it is opened; if there is one in either place they must be the
 * same.
 *
 * A file that is in the chain already, and a chain that is deeper than
 * CHAIN_MAX_LAYERS, are refused.  Every layer stays open and is locked as a reader; a
 * chain may need more open files than the default limit allows, so the soft limit is
 * raised when it is met.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "format/compress.h"
#include "format/luks.h"
#include "mapping/chain.h"

/* Allows as many open files as the hard limit does. */
static bool
raise_file_limit (void)
{
  struct rlimit limit;

  if (getrlimit (RLIMIT_NOFILE, &limit) == -1 ||
      limit.rlim_cur >= limit.rlim_max)
    return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit (RLIMIT_NOFILE, &limit) == 0;
}

/* A chain of thousands leaves room for the server's own files. */
#define SPARE_FILES 64

void
chain_reserve_files (unsigned layers)
{
  struct rlimit limit;

  if (getrlimit (RLIMIT_NOFILE, &limit) == 0 &&
      layers + SPARE_FILES > limit.rlim_cur)
    raise_file_limit ();
}

/* --- one image --- */

/* By name, what this plugin does not serve. */
static int
check_features (const char *path, const struct header *h)
{
  const char *what = NULL;

  if ((h->incompatible & QCOW2_INCOMPAT_DATA_FILE) && h->nb_snapshots > 0)
    what = "internal snapshots together with an external data file";
  else if (!compress_supported (h->compression_type))
    what = "zstd compression, for which this plugin was not built";

  if (what) {
    nbdkit_error ("%s: the image uses %s: not supported", path, what);
    errno = ENOTSUP;
    return -1;
  }
  return 0;
}

/* How much of the file the header can take: the first cluster, whose size is in
 * the first bytes.  0 on error (reported). */
static uint64_t
header_length (struct hostfile *file)
{
  struct qcow2_header h;
  unsigned bits;

  if (hostfile_read (file, &h, sizeof h, 0) == -1)
    return 0;
  bits = get32 (h.cluster_bits);
  if (bits < QCOW2_MIN_CLUSTER_BITS || bits > QCOW2_MAX_CLUSTER_BITS)
    bits = QCOW2_MIN_CLUSTER_BITS;      /* will be refused */
  return min64 (hostfile_size (file), UINT64_C (1) << bits);
}

/* Where a LUKS header is. */
struct luks_place {
  struct hostfile *file;
  uint64_t offset;
};

static int
read_luks (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  const struct luks_place *place = opaque;

  return hostfile_read (place->file, buf, bytes, place->offset + offset);
}

/* Whoever made the header chose how long it takes to try a passphrase. */
static int
check_rounds (const char *path, const struct luks *luks,
              const struct chain_secret *secret)
{
  if (secret->most_rounds == 0 || luks_rounds (luks) <= secret->most_rounds)
    return 0;
  nbdkit_error ("%s: LUKS header: to try a passphrase on its key slots takes %" PRIu64
                " rounds of hashing, and more than %" PRIu64 " are refused of untrusted "
                "images", path, luks_rounds (luks), secret->most_rounds);
  errno = EPERM;
  return -1;
}

static int
unlock_luks (struct hostfile *file, const struct header *h,
             const struct chain_secret *secret, struct crypt_cipher **cipher)
{
  struct luks_place place = { file, h->crypto.offset };
  struct luks_header raw;
  struct luks *luks;
  int r;

  if (hostfile_read (file, &raw, sizeof raw, h->crypto.offset) == -1 ||
      luks_parse (hostfile_path (file), &raw, sizeof raw, h->crypto.length,
                  &luks) == -1)
    return -1;
  r = check_rounds (hostfile_path (file), luks, secret);
  if (r == 0)
    r = luks_unlock (luks, read_luks, &place, secret->passphrase, secret->len,
                     cipher);
  luks_free (luks);
  return r;
}

/* Specification: "Full disk encryption header pointer". */
static int
unlock (struct hostfile *file, const struct header *h,
        const struct chain_secret *secret, struct crypt_cipher **cipher)
{
  *cipher = NULL;
  if (h->crypt_method == QCOW2_CRYPT_NONE)
    return 0;
  if (secret->passphrase == NULL) {
    nbdkit_error ("%s: the image is encrypted: passphrase= is needed",
                  hostfile_path (file));
    errno = EACCES;
    return -1;
  }
  if (h->crypt_method == QCOW2_CRYPT_LUKS)
    return unlock_luks (file, h, secret, cipher);
  *cipher = crypt_new_legacy (hostfile_path (file), secret->passphrase,
                              secret->len);
  return *cipher ? 0 : -1;
}

int
chain_read_header (struct hostfile *file, struct header *header)
{
  CLEANUP_FREE void *buf = NULL;
  const char *path = hostfile_path (file);
  uint64_t len;

  if (hostfile_size (file) == 0) {
    nbdkit_error ("%s: not a qcow2 image (the file is empty)", path);
    errno = EINVAL;
    return -1;
  }
  len = header_length (file);
  if (len == 0)
    return -1;
  buf = malloc (len);
  if (buf == NULL) {
    nbdkit_error ("malloc: %m");
    return -1;
  }
  if (hostfile_read (file, buf, len, 0) == -1)
    return -1;
  if (!header_is_qcow2 (buf, len)) {
    nbdkit_error ("%s: not a qcow2 image (no QFI magic at offset 0)", path);
    errno = EINVAL;
    return -1;
  }
  return header_parse (path, buf, len, hostfile_size (file), header);
}

int
chain_open_image (const char *path, const struct hostfile_options *options,
                  const struct chain_secret *secret, struct hostfile **file,
                  struct header *header, struct crypt_cipher **cipher)
{
  if (hostfile_open (path, options, file) == -1)
    return -1;
  if (chain_read_header (*file, header) == -1)
    goto error;
  if (check_features (path, header) == -1 ||
      unlock (*file, header, secret, cipher) == -1) {
    header_free (header);
    goto error;
  }
  return 0;

 error:
  hostfile_close (*file);
  *file = NULL;
  return -1;
}

/* --- names --- */

/* Does the name begin with a protocol ("nbd:", "http://")? */
static bool
has_protocol (const char *name)
{
  const char *colon = strchr (name, ':');
  const char *slash = strchr (name, '/');

  return colon != NULL && (slash == NULL || colon < slash);
}

/* The path that NAME, of a WHAT of the image at OVERLAY, means; to be freed.
 * NULL on error (reported). */
static char *
resolve_name (const char *overlay, const char *what, const char *name)
{
  const char *slash;
  char *path;
  int r;

  if (strncmp (name, "file:", 5) == 0)
    name += 5;
  else if (has_protocol (name)) {
    nbdkit_error ("%s: %s name \"%s\" is not a plain path; "
                  "only files are supported", overlay, what, name);
    errno = ENOTSUP;
    return NULL;
  }
  if (name[0] == '\0') {
    nbdkit_error ("%s: %s name is empty", overlay, what);
    errno = EINVAL;
    return NULL;
  }

  slash = strrchr (overlay, '/');
  if (name[0] == '/' || slash == NULL)
    r = asprintf (&path, "%s", name);
  else
    r = asprintf (&path, "%.*s%s", (int) (slash - overlay + 1), overlay, name);
  if (r == -1) {
    nbdkit_error ("asprintf: %m");
    return NULL;
  }
  return path;
}

char *
chain_resolve_name (const char *overlay, const char *name)
{
  return resolve_name (overlay, "backing file", name);
}

/* --- external data files --- */

/* NAME as QEMU understands it: as it stands, from the current directory.  NULL: not
 * a relative name of something that is there. */
static char *
find_in_cwd (const char *name, struct stat *st)
{
  CLEANUP_FREE char *cwd = NULL;
  char *path;

  if (strncmp (name, "file:", 5) == 0)
    name += 5;
  if (name[0] == '/' || stat (name, st) == -1 ||
      (cwd = getcwd (NULL, 0)) == NULL ||
      asprintf (&path, "%s/%s", cwd, name) == -1)
    return NULL;
  return path;
}

/* Where the data file of the image at OVERLAY is; to be freed.  NULL: reported. */
static char *
find_data_file (const char *overlay, const char *name)
{
  char *path = resolve_name (overlay, "data file", name);
  char *other;
  struct stat st, other_st;

  if (path == NULL)
    return NULL;
  other = find_in_cwd (name, &other_st);
  if (other == NULL)
    return path;
  if (stat (path, &st) == -1) {
    free (path);
    return other;
  }
  if (st.st_dev == other_st.st_dev && st.st_ino == other_st.st_ino) {
    free (other);
    return path;
  }
  nbdkit_error ("%s: the external data file \"%s\" could be %s or %s: "
                "use data-file= to say which", overlay, name, path, other);
  errno = EINVAL;
  free (other);
  free (path);
  return NULL;
}

/* As which of the files of LAYERS, or as FILE, is DATA in use already?  Or NULL. */
static struct hostfile *
find_same (struct layers *layers, struct hostfile *file, struct hostfile *data)
{
  unsigned i;

  if (file && hostfile_same (file, data))
    return file;
  for (i = 0; i < layers_count (layers); i++)
    if (hostfile_same (layers_file (layers, i), data))
      return layers_file (layers, i);
    else if (hostfile_same (layers_data_file (layers, i), data))
      return layers_data_file (layers, i);
  return NULL;
}

int
chain_data_file (const char *overlay, const struct header *h,
                 const struct chain_options *options, bool top, char **path)
{
  const bool replaced = options->data_file == DATA_FILE_PATH && top;

  *path = NULL;
  errno = EINVAL;
  if (!(h->incompatible & QCOW2_INCOMPAT_DATA_FILE)) {
    if (!replaced)
      return 0;
    nbdkit_error ("%s: the image has no external data file: "
                  "data-file=%s is not for it", overlay, options->data_file_path);
    return -1;
  }
  if (options->data_file == DATA_FILE_DENY) {
    nbdkit_error ("%s: the image has an external data file (\"%s\"), "
                  "and data files are denied", overlay,
                  h->data_file ? h->data_file : "");
    errno = EPERM;
    return -1;
  }
  if (!replaced && h->data_file == NULL) {
    nbdkit_error ("%s: the image has an external data file, but does not say "
                  "where it is%s", overlay, top ? ": use data-file=PATH" : "");
    return -1;
  }

  *path = replaced ? strdup (options->data_file_path)
    : find_data_file (overlay, h->data_file);
  return *path ? 0 : -1;
}

int
chain_open_data_file (struct layers *layers, struct hostfile *file,
                      const struct header *h,
                      const struct chain_options *options,
                      const struct hostfile_options *file_options_,
                      struct hostfile **data)
{
  struct hostfile_options file_options = *file_options_;
  const char *overlay = hostfile_path (file);
  CLEANUP_FREE char *path = NULL;
  struct hostfile *same;

  *data = NULL;
  if (chain_data_file (overlay, h, options, layers_count (layers) == 0, &path) == -1)
    return -1;
  if (path == NULL)
    return 0;
  file_options.data_file = true;
  chain_reserve_files (2 * layers_count (layers) + 2);
  if (hostfile_open (path, &file_options, data) == -1)
    return -1;
  same = find_same (layers, file, *data);
  if (same == NULL)
    return 0;
  nbdkit_error ("%s: the external data file of %s is in use already, as %s",
                path, overlay, hostfile_path (same));
  hostfile_close (*data);
  *data = NULL;
  errno = ELOOP;
  return -1;
}

/* --- the chain --- */

static int
check_new (struct layers *layers, struct hostfile *file)
{
  struct hostfile *same = find_same (layers, NULL, file);

  if (same) {
    nbdkit_error ("%s: backing chain loops: the file is in it already, as %s",
                  hostfile_path (file), hostfile_path (same));
    errno = ELOOP;
    return -1;
  }
  if (layers_count (layers) >= CHAIN_MAX_LAYERS) {
    nbdkit_error ("%s: backing chain has more than %d files",
                  hostfile_path (file), CHAIN_MAX_LAYERS);
    errno = ELOOP;
    return -1;
  }
  return 0;
}

static int
add_qcow2 (struct layers *layers, const char *path,
           const struct chain_options *options)
{
  struct crypt_cipher *cipher;
  struct hostfile *file, *data = NULL;
  struct header header;

  if (chain_open_image (path, &options->file, &options->secret, &file,
                        &header, &cipher) == -1)
    return -1;
  if (check_new (layers, file) == -1 ||
      chain_open_data_file (layers, file, &header, options, &options->file,
                            &data) == -1 ||
      layers_add_qcow2 (layers, file, data, &header, cipher) == -1) {
    crypt_free (cipher);
    header_free (&header);
    hostfile_close (data);
    hostfile_close (file);
    return -1;
  }
  return 0;
}

static int
add_raw (struct layers *layers, const char *path,
         const struct chain_options *options)
{
  struct hostfile *file;

  if (hostfile_open (path, &options->file, &file) == -1)
    return -1;
  if (check_new (layers, file) == -1 ||
      layers_add_raw (layers, file, hostfile_size (file)) == -1) {
    hostfile_close (file);
    return -1;
  }
  return 0;
}

int
chain_below (const char *overlay, const struct header *h,
             const struct chain_options *options, char **path,
             const char **format)
{
  *path = NULL;
  if (h == NULL)
    return 0;                   /* raw: the end */
  if (options->backing != BACKING_PATH && h->backing_file == NULL)
    return 0;

  if (options->backing == BACKING_DENY) {
    nbdkit_error ("%s: the image has a backing file (\"%s\"), "
                  "and backing files are denied", overlay, h->backing_file);
    errno = EPERM;
    return -1;
  }
  *path = options->backing == BACKING_PATH ? strdup (options->backing_path)
    : resolve_name (overlay, "backing file", h->backing_file);
  if (*path == NULL)
    return -1;

  *format = options->backing_format ? options->backing_format
    : h->backing_format;
  if (*format == NULL) {
    nbdkit_error ("%s: the image does not say which format its backing file "
                  "\"%s\" has, and formats are not guessed%s", overlay, *path,
                  options->below_top ? "" :
                  ": use backing-format=qcow2 or =raw");
    errno = EINVAL;
  }
  else if (strcmp (*format, "qcow2") == 0 || strcmp (*format, "raw") == 0)
    return 0;
  else {
    nbdkit_error ("%s: backing file \"%s\" has format \"%s\", which is not "
                  "supported (only qcow2 and raw are)",
                  overlay, *path, *format);
    errno = ENOTSUP;
  }
  free (*path);
  *path = NULL;
  return -1;
}

void
chain_go_below_top (struct chain_options *options)
{
  /* The parameters are about the top image's backing file. */
  options->backing = BACKING_FOLLOW;
  options->backing_format = NULL;
  options->below_top = true;
}

int
chain_open (struct layers *layers, const struct chain_options *options_)
{
  struct chain_options options = *options_;

  options.file.try_writable = false;

  for (;;) {
    CLEANUP_FREE char *path = NULL;
    const unsigned bottom = layers_count (layers) - 1;
    const char *format;
    int r;

    if (chain_below (hostfile_path (layers_file (layers, bottom)),
                     layers_header (layers, bottom), &options, &path,
                     &format) == -1)
      return -1;
    if (path == NULL)
      return 0;

    chain_reserve_files (layers_count (layers) + 1);
    if (strcmp (format, "qcow2") == 0)
      r = add_qcow2 (layers, path, &options);
    else
      r = add_raw (layers, path, &options);
    if (r == -1)
      return -1;
    chain_go_below_top (&options);
  }
}
