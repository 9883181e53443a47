/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is the file of a generation what a backup has stored?
 *
 * What can be seen without reading all of it is always checked before it is used: its
 * size, the size of its disk, the file that it lies over, and its metadata.  So a file
 * that was cut off or exchanged is found, unless it is as long.  The checksum finds any
 * other byte.
 *
 * The checksum is that of the whole file, as sha256sum prints it, because that can be
 * checked anywhere.  It cannot be computed while the file is written, which is not in
 * order.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "check/check.h"
#include "check/checkreport.h"
#include "img/generationfile.h"
#include "img/imagefile.h"
#include "img/info.h"
#include "img/progress.h"

#define PIECE (1u << 20)

/* --- what it has --- */

static int
failed (const char *path, const char *what)
{
  report_error ("%s: %s: %m", path, what);
  return -1;
}

static int
add_bytes (EVP_MD_CTX *context, int fd, const char *path, uint64_t size)
{
  CLEANUP_FREE char *buf = memory_get (PIECE);
  uint64_t done = 0;
  ssize_t n;

  while (buf && (n = read (fd, buf, PIECE)) != 0) {
    if (n == -1)
      return failed (path, "cannot read it");
    if (EVP_DigestUpdate (context, buf, n) != 1) {
      errno = EIO;
      return failed (path, "cannot make its checksum");
    }
    done += n;
    if (!progress_step (NULL, done, size, 0)) {
      errno = EINTR;
      return failed (path, "cannot make its checksum");
    }
  }
  return buf ? 0 : -1;
}

static int
make_sum (int fd, const char *path, struct generationfile *f)
{
  EVP_MD_CTX *context = EVP_MD_CTX_new ();
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned len = 0;
  int r = -1;

  if (context == NULL || EVP_DigestInit_ex (context, EVP_sha256 (), NULL) != 1) {
    errno = ENOMEM;
    failed (path, "cannot make its checksum");
  }
  else if (add_bytes (context, fd, path, f->size) == 0 &&
           EVP_DigestFinal_ex (context, digest, &len) == 1)
    r = 0;
  EVP_MD_CTX_free (context);
  for (unsigned i = 0; r == 0 && i < len && i < sizeof f->sum / 2; i++)
    snprintf (f->sum + 2 * i, 3, "%02x", digest[i]);
  return r;
}

int
generationfile_measure (const struct repository *r, const char *file, bool sum,
                        struct generationfile *f)
{
  CLEANUP_FREE char *path = repository_path (r, file);
  const int fd = path ? open (path, O_RDONLY | O_CLOEXEC) : -1;
  struct stat st;
  int result = -1;

  *f = (struct generationfile) { .size = 0 };
  if (path == NULL)
    return -1;
  if (fd == -1 || fstat (fd, &st) == -1)
    failed (path, "cannot open it");
  else {
    f->size = st.st_size;
    result = sum ? make_sum (fd, path, f) : 0;
  }
  if (fd >= 0)
    close (fd);
  return result;
}

/* --- is it right? --- */

/* The file that is below the oldest generation, as the manifest has it. */
#define BELOW UINT32_MAX

static struct repository_generation
get (const struct repository *r, unsigned i)
{
  return i == BELOW ? repository_below (r) : repository_get (r, i);
}

static int
wrong (const struct repository *r, const struct repository_generation *g, const char *why)
{
  CLEANUP_FREE char *path = repository_path (r, g->file);

  return report_refusal (EINVAL, "%s: the file of generation %" PRIu64 " %s",
                         path ? path : g->file, g->number, why);
}

static int
compare (const struct repository *r, const struct repository_generation *g, bool sums)
{
  struct generationfile f;

  if (generationfile_measure (r, g->file, sums && g->sum, &f) == -1)
    return -1;
  return g->file_size && f.size != g->file_size ? wrong (r, g, "has another size than it had")
    : f.sum[0] && strcmp (f.sum, g->sum) != 0
    ? wrong (r, g, "has another checksum than it had") : 0;
}

/* Does it lie over what the manifest says?  The second one may lie over the file into
 * which the oldest one was merged, before the manifest says so. */
static bool
lies_over (const struct repository *r, unsigned i, const char *backing)
{
  const char *said = get (r, i).backing;
  const char *merged = i == 1 ? repository_get (r, 0).backing : NULL;

  return backing == NULL || said == NULL ? backing == said
    : strcmp (backing, said) == 0 || (merged && strcmp (backing, merged) == 0);
}

/* Is its metadata what it was?  (Of one that was cut off, the tables point past its
 * end.) */
static int
check_metadata (const struct repository *r, const struct repository_generation *g,
                const struct imagefile *f)
{
  struct check_options options = {
    .mode = CHECK_QUICK, .path = f->options.path, .chain = disk_chain_options (&f->options),
  };
  const struct check_result *result;
  struct check *c;
  bool well;

  if (check_run (&options, &c) == -1)
    return -1;
  result = check_get_result (c);
  well = result->layers[0]->parsed && result->layers[0]->corruptions == 0;
  check_free (c);
  return well ? 0 : wrong (r, g, "is damaged: see what check says of it");
}

/* Of what is merged, the disk gets the size of the generation that it is merged with. */
static bool
has_size (const struct repository *r, unsigned i, uint64_t size)
{
  return size == get (r, i).size ||
    (i == BELOW && (get (r, i).size == 0 || size == repository_get (r, 0).size));
}

static int
inspect (const struct repository *r, unsigned i, bool tables)
{
  static const struct arguments none;
  const struct repository_generation g = get (r, i);
  CLEANUP_FREE char *path = repository_path (r, g.file);
  struct imagefile *f = path ? imagefile_new (&none, path, g.raw ? "raw" : "qcow2", NULL)
    : NULL;
  json_t *info = f ? info_describe (f, false) : NULL;
  const char *backing = json_string_value (json_object_get (info, "backing-filename"));
  int result = -1;

  if (info == NULL)
    ;
  else if (!has_size (r, i, json_integer_value (json_object_get (info, "virtual-size"))))
    wrong (r, &g, "has a disk of another size");
  else if (!lies_over (r, i, backing))
    wrong (r, &g, "lies over another file than the manifest says");
  else
    result = g.raw || !tables ? 0 : check_metadata (r, &g, f);
  json_decref (info);
  imagefile_free (f);
  return result;
}

static int
check_file (const struct repository *r, unsigned i, bool sums)
{
  const struct repository_generation g = get (r, i);

  return compare (r, &g, sums) == -1 ? -1 : inspect (r, i, true);
}

/* Calls FN for generation I and those below it, until it returns -1. */
static int
for_chain (const struct repository *r, unsigned i, bool sums,
           int (*fn) (const struct repository *, unsigned i, bool sums))
{
  struct repository_generation g = repository_get (r, i), below;

  for (;; i--, g = below) {
    if (fn (r, i, sums) == -1)
      return -1;
    if (g.backing == NULL || i == 0)
      return g.backing ? fn (r, BELOW, sums) : 0;
    below = repository_get (r, i - 1);
    if (strcmp (below.file, g.backing) != 0)
      return wrong (r, &g, "lies over a file of no generation");
  }
}

int
generationfile_check (const struct repository *r, unsigned i, bool sums)
{
  return for_chain (r, i, sums, check_file);
}

int
generationfile_check_all (const struct repository *r)
{
  int result = 0;

  errno = 0;
  for (unsigned i = 0; i < repository_count (r) && errno != EINTR; i++)
    if (check_file (r, i, true) == -1)
      result = -1;
  if (repository_below (r).file && errno != EINTR && check_file (r, BELOW, true) == -1)
    result = -1;
  return result;
}

unsigned
generationfile_unknown (const struct repository *r, int i)
{
  const bool all = i == -1;
  unsigned n = 0;

  for (i = all ? (int) repository_count (r) - 1 : i; i >= 0; i--) {
    n += repository_get (r, i).sum == NULL;
    if (!all && repository_get (r, i).backing == NULL)
      return n;
  }
  return n + (repository_below (r).file && repository_below (r).sum == NULL);
}

static int
glance (const struct repository *r, unsigned i, bool sums)
{
  const struct repository_generation g = get (r, i);

  return compare (r, &g, sums) == -1 ? -1 : inspect (r, i, i == BELOW);
}

bool
generationfile_is_there (const struct repository *r, unsigned i)
{
  const bool before = report_silence (true);
  const bool there = for_chain (r, i, false, glance) == 0;

  report_silence (before);
  return there;
}
