/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is done with one image that is validated?
 *
 * Steps, in this order, until one fails or cannot be done: the policy judges it, the core
 * checks it, all bytes of its disk are read, their checksum is compared, and programs
 * check the filesystems on it.  All of them use the file that was opened first, whatever
 * its name means later.
 *
 * This is a process of its own (pool.c), so memory is freed by its end.  What a step
 * prints (report_error, or a program for filesystems) is its message: both standard
 * descriptors lead to a file in memory.  Before each step the process tells what has
 * happened so far, and with it the step that counts if the new one does not end in time.
 *
 * Locks: none; threads only read the disk.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/text.h"
#include "util/zeros.h"
#include "copy/chunks.h"
#include "check/checkreport.h"
#include "img/diskend.h"
#include "img/partitions.h"
#include "img/pool.h"
#include "img/upload.h"
#include "img/validate.h"
#include "img/validatereport.h"

#define POLICY_SECONDS 10
#define POLICY_MEMORY (UINT64_C (64) << 20)     /* bytes more than were in use before */

/* A disk is not read if it has more data than so much, and so many times more than its
 * files: deflate compresses to 1/1032 at best. */
#define SPARE_BYTES (UINT64_C (64) << 30)
#define SPARE_TIMES 1032

#define MAX_MESSAGE 4000        /* bytes of what was said last */
#define MAX_LOG (UINT64_C (16) << 20)   /* of what a program may say */
#define PIECE (UINT64_C (1) << 20)      /* bytes that are read at a time */

struct image_run {
  const struct validate_options *o;
  const char *name;             /* as the user calls it */
  int fd;                       /* of the image */
  struct imagefile *file;
  json_t *entry;
  struct check *check;
  struct diskend disk;
  char sum[65];                 /* of the disk; "": not known yet */
  const struct partition *partition;    /* of a step about one */
  const char *step;             /* its name */
};

/* --- steps --- */

static double
now (void)
{
  struct timespec t;

  clock_gettime (CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

/* Tells the entry, and what counts if nothing more is told within SECONDS. */
static void
tell (struct image_run *r, enum status late, const char *text, double seconds)
{
  json_t *step = step_new (r->step, late, text, seconds);

  pool_tell (jsontext_object ({ "entry", json_incref (r->entry) }, { "late", step }),
             seconds);
}

/* The end of what was printed since the step began, without the last newline.  The caller
 * frees it. */
static char *
take_log (void)
{
  const off_t end = lseek (STDERR_FILENO, 0, SEEK_END);
  const off_t begin = end > MAX_MESSAGE ? end - MAX_MESSAGE : 0;
  char *text = calloc (1, MAX_MESSAGE + 1);
  ssize_t n;

  if (text == NULL || end == -1)
    return text;
  n = pread (STDERR_FILENO, text, MAX_MESSAGE, begin);
  if (n > 0 && text[n - 1] == '\n')
    text[n - 1] = '\0';
  return text;
}

static void
add_step (struct image_run *r, enum status status, double seconds)
{
  CLEANUP_FREE char *text = take_log ();

  if (text == NULL ||
      json_array_append_new (json_object_get (r->entry, "steps"),
                             step_new (r->step, status, text, seconds)) == -1)
    _exit (EXIT_FAILURE);
  if (ftruncate (STDERR_FILENO, 0) == -1 || lseek (STDERR_FILENO, 0, SEEK_SET) == -1)
    _exit (EXIT_FAILURE);
}

/* True if it went well, or was left out for a reason that is no fault. */
static bool
do_step (struct image_run *r, const char *name, enum status (*fn) (struct image_run *))
{
  const double limit = r->o->timeout, begin = now ();
  CLEANUP_FREE char *late = text_new ("%s took longer than %g seconds", name, limit);
  enum status status;

  r->step = name;
  tell (r, STEP_ERROR, late ? late : "", limit);
  status = fn (r);
  /* (The waiting thread may have been busy.) */
  if (limit && now () - begin > limit) {
    report_error ("%s", late ? late : "");
    status = STEP_ERROR;
  }
  add_step (r, status, now () - begin);
  return status == STEP_OK || status == STEP_SKIPPED;
}

/* --- the policy --- */

static void
stream_continues (void *opaque)
{
  struct image_run *r = opaque;
  const double limit = r->o->timeout;
  CLEANUP_FREE char *late = text_new ("the stream did not arrive within %g seconds", limit);

  tell (r, STEP_ERROR, late ? late : "", limit);
}

/* Of data, in bytes: what the kernel counts for RLIMIT_DATA. */
static uint64_t
memory_in_use (void)
{
  unsigned long pages = 0;
  FILE *fp = fopen ("/proc/self/statm", "re");

  if (fp && fscanf (fp, "%*u %*u %*u %*u %*u %lu", &pages) != 1)
    pages = 0;
  if (fp)
    fclose (fp);
  return (uint64_t) pages * sysconf (_SC_PAGESIZE);
}

static int
judge_file (struct image_run *r, json_t **findings)
{
  struct disk_options options = r->file->options;
  struct rlimit before, limit;
  int ret;

  options.untrusted = true;
  options.backing = BACKING_DENY;
  options.data_file = DATA_FILE_DENY;
  options.lock = false;
  getrlimit (RLIMIT_DATA, &before);
  limit = before;
  limit.rlim_cur = min64 (limit.rlim_max, memory_in_use () + POLICY_MEMORY);
#ifndef __SANITIZE_ADDRESS__    /* it has memory of its own */
  setrlimit (RLIMIT_DATA, &limit);
#endif
  ret = upload_judge_file (r->o->policy, r->fd, &options, findings);
  setrlimit (RLIMIT_DATA, &before);
  return ret;
}

/* Before a file is judged: if that takes too long, it is refused. */
static void
tell_judging (struct image_run *r)
{
  static const char slow[] = "describing it took longer than 10 seconds";
  json_t *findings = json_array ();

  finding_add (&findings, "too-slow", "%s", slow);
  pool_tell (jsontext_object ({ "entry", json_incref (r->entry) },
                              { "late", step_new (r->step, STEP_FAILED, slow,
                                                  POLICY_SECONDS) },
                              { "findings-if-late", findings }), POLICY_SECONDS);
}

static enum status
judge (struct image_run *r)
{
  json_t *findings = json_array (), *one;
  size_t i;
  int ret;

  if (r->file == NULL) {
    tell (r, STEP_ERROR, "the header did not arrive within 10 seconds", POLICY_SECONDS);
    ret = upload_judge_stream (r->o->policy, r->fd, stream_continues, r, &findings);
  }
  else {
    tell_judging (r);
    ret = judge_file (r, &findings);
  }
  if (findings == NULL && ret == 0)
    report_error ("no memory");
  if (findings == NULL || ret == -1) {
    json_decref (findings);
    return STEP_ERROR;
  }
  json_array_foreach (findings, i, one) {
    CLEANUP_FREE char *text =
      jsontext_bytes (json_string_value (json_object_get (one, "message")));

    fprintf (stderr, "%s: %s\n", json_string_value (json_object_get (one, "code")),
             text ? text : "");
  }
  json_object_set_new (r->entry, "findings", findings);
  return i ? STEP_FAILED : STEP_OK;
}

/* --- the check --- */

static bool
is_too_much_work (const struct check_result *result)
{
  for (size_t i = 0; i < result->n; i++)
    if (findings_count (result->layers[i]->findings, FINDING_WORK))
      return true;
  return false;
}

/* Prints what the result says.  Is there anything to be opened? */
static bool
tell_result (const struct check_result *result)
{
  char line[5000];

  if (result->verdict > CHECK_MARKED)
    checkreport_tell (result);
  report_error ("%s", checkreport_line (result, line, sizeof line));
  return result->verdict <= CHECK_MARKED;
}

static bool
open_disk (struct image_run *r, const struct check_result *result)
{
  for (size_t i = 0; i < result->n; i++)        /* a server may admit one client */
    if (result->layers[i]->image)
      image_disconnect (result->layers[i]->image);
  if (diskend_open (r->file, NULL, &r->disk) == 0)
    return true;
  check_finish (r->check, false);
  return false;
}

static enum status
check (struct image_run *r)
{
  const struct check_result *result;
  struct check_options options = {
    .mode = r->o->check, .untrusted = r->file->options.untrusted,
    .path = r->file->options.path, .chain = disk_chain_options (&r->file->options),
  };
  bool opened;

  options.chain.image.secret.unneeded = true;
  if (check_run (&options, &r->check) == -1)
    return STEP_ERROR;
  result = check_get_result (r->check);
  opened = tell_result (result) && open_disk (r, result);
  if (json_object_set_new (r->entry, "check", checkreport_describe (result)) == -1)
    report_error ("no memory for the report");
  if (result->verdict == CHECK_CORRUPT || (r->o->policy && is_too_much_work (result)))
    return STEP_FAILED;
  if (!opened)
    return STEP_ERROR;
  return result->verdict == CHECK_LEAKS && r->o->no_leaks ? STEP_FAILED : STEP_OK;
}

/* --- reading the disk --- */

/* A few MiB can contain terabytes of data: the same bytes again and again. */
static bool
is_too_much (struct image_run *r)
{
  const struct check_result *result = check_get_result (r->check);
  uint64_t files = 0, data = 0, most, one;
  struct stat st;

  for (size_t i = 0; i < result->n; i++) {
    const struct check_layer *l = result->layers[i];
    const bool sparse = i == 0 && fstat (r->fd, &st) == 0 && S_ISREG (st.st_mode);

    files += sparse ? min64 (l->file_size, (uint64_t) st.st_blocks * 512) : l->file_size;
    if (l->parsed && mul_fits (l->stats.allocated, l->image->header.cluster_size, &one))
      data = add_fits (data, one, &data) ? data : UINT64_MAX;
  }
  if (!mul_fits (files, SPARE_TIMES, &most) || !add_fits (most, SPARE_BYTES, &most))
    most = UINT64_MAX;
  if (data <= most || r->o->timeout)
    return false;
  report_error ("the disk has %" PRIu64 " bytes of data, more than files of this size should "
                "have (%" PRIu64 "): to read it, use --timeout", data, most);
  return true;
}

/* Calls FN for the pieces of a range, in order: BUF is NULL if it reads as zeros.  -1:
 * reported, or FN has returned it. */
static int
each_piece (const struct copy_end *e, void *buf, uint64_t at, uint64_t end,
            int (*fn) (void *opaque, const void *buf, uint64_t count), void *opaque)
{
  struct extent x;

  for (; at < end; at += x.len) {
    x.len = end - at;
    if (e->ops->extent (e, at, &x, NULL) == -1)
      return -1;
    x.len = min64 (x.len, end - at);
    if (x.type == EXTENT_DATA) {
      x.len = min64 (x.len, PIECE);
      if (e->ops->read (e, buf, x.len, at) == -1)
        return -1;
    }
    if (fn && fn (opaque, x.type == EXTENT_DATA ? buf : NULL, x.len) == -1)
      return -1;
  }
  return 0;
}

static int
read_chunk (void *opaque, void *scratch, uint64_t start, uint64_t end, uint64_t *copied)
{
  const struct image_run *r = opaque;

  (void) copied;
  return each_piece (&r->disk.end, scratch, start, end, NULL, NULL);
}

static int
hash_piece (void *context, const void *buf, uint64_t count)
{
  uint64_t part;

  if (buf)
    return EVP_DigestUpdate (context, buf, count) == 1 ? 0 : -1;
  for (; count > 0; count -= part) {
    part = min64 (count, ZEROS_SIZE);
    if (EVP_DigestUpdate (context, zero_bytes, part) != 1)
      return -1;
  }
  return 0;
}

static void
note_sum (struct image_run *r, const unsigned char *digest, unsigned len)
{
  for (unsigned i = 0; i < len; i++)
    snprintf (r->sum + 2 * i, 3, "%02x", digest[i]);
  json_object_set_new (r->entry, "sha256", json_string (r->sum));
}

/* Reads all of the disk, once, and hashes it. */
static enum status
hash (struct image_run *r)
{
  CLEANUP_FREE char *buf = memory_get (PIECE);
  unsigned char digest[EVP_MAX_MD_SIZE];
  EVP_MD_CTX *context = EVP_MD_CTX_new ();
  unsigned len = 0;
  int ret = -1;

  if (buf && context && EVP_DigestInit_ex (context, EVP_sha256 (), NULL) == 1)
    ret = each_piece (&r->disk.end, buf, 0, r->disk.end.size, hash_piece, context);
  if (ret == 0 && EVP_DigestFinal_ex (context, digest, &len) == 1 && len == 32)
    note_sum (r, digest, len);
  EVP_MD_CTX_free (context);
  return r->sum[0] ? STEP_OK : STEP_FAILED;
}

static enum status
read_disk (struct image_run *r)
{
  const struct chunks_job job = {
    .words = { .path = r->file->given }, .size = r->disk.end.size, .scratch = PIECE,
    .remote = r->disk.end.remote, .opaque = r, .work = read_chunk,
  };
  uint64_t copied;

  if (is_too_much (r))
    return STEP_ERROR;
  if (r->o->hash || r->o->sha256 || r->o->sums)
    return hash (r);
  return chunks_run (&job, NULL, &copied) == 0 ? STEP_OK : STEP_FAILED;
}

static const char *
sum_of (const struct image_run *r)
{
  const char *slash = strrchr (r->name, '/');
  const json_t *sum = json_object_get (r->o->sums, r->name);

  if (sum == NULL && slash)
    sum = json_object_get (r->o->sums, slash + 1);
  return sum ? json_string_value (sum) : r->o->sha256;
}

static enum status
compare_sum (struct image_run *r)
{
  const char *expected = sum_of (r);

  if (expected == NULL) {
    report_error ("no checksum was given for this image");
    return STEP_FAILED;
  }
  if (r->sum[0] == '\0' && hash (r) != STEP_OK)
    return STEP_FAILED;
  if (strcmp (r->sum, expected) == 0)
    return STEP_OK;
  report_error ("the checksum of the disk is %s, not %s", r->sum, expected);
  return STEP_FAILED;
}

/* --- filesystems --- */

#define FILESYSTEM_HEAD 2048

/* The program that checks it, with its options, and changes nothing; NULL: unknown. */
static const char *const *
checker_of (const char *head, const char **kind)
{
  static const char *const ext[] = { "e2fsck", "-fn", "/dev/stdin", NULL };
  static const char *const xfs[] = { "xfs_repair", "-n", "-f", "/dev/stdin", NULL };
  static const char *const fat[] = { "fsck.vfat", "-n", "/dev/stdin", NULL };

  *kind = "ext2, ext3 or ext4";
  if (memcmp (head + 1080, "\x53\xef", 2) == 0)
    return ext;
  *kind = "XFS";
  if (memcmp (head, "XFSB", 4) == 0)
    return xfs;
  *kind = "FAT";
  return partitions_is_fat (head) ? fat : NULL;
}

#define NOT_INSTALLED 127       /* exit status */

static void __attribute__ ((noreturn))
be_program (int volume, const char *const *words)
{
  const struct rlimit log = { MAX_LOG, MAX_LOG };

  prctl (PR_SET_PDEATHSIG, SIGKILL);
  setrlimit (RLIMIT_FSIZE, &log);
  if (dup2 (volume, STDIN_FILENO) >= 0)
    execvp (words[0], (char **) words);
  _exit (NOT_INSTALLED);
}

/* Runs the program, whose stdin is VOLUME. */
static enum status
run_program (int volume, const char *kind, const char *const *words)
{
  int status;
  pid_t pid = fork ();

  if (pid == 0)
    be_program (volume, words);
  if (pid == -1 || waitpid (pid, &status, 0) == -1) {
    report_error ("%s: %m", words[0]);
    return STEP_ERROR;
  }
  if (WIFEXITED (status) && WEXITSTATUS (status) == 0) {
    if (ftruncate (STDERR_FILENO, 0) == 0)
      fprintf (stderr, "%s\n", kind);
    return STEP_OK;
  }
  if (WIFEXITED (status) && WEXITSTATUS (status) == NOT_INSTALLED) {
    fprintf (stderr, "%s, but %s is not installed\n", kind, words[0]);
    return STEP_SKIPPED;
  }
  if (WIFEXITED (status))
    return STEP_FAILED;
  /* As when there is no memory left. */
  report_error ("%s was killed by signal %d", words[0], WTERMSIG (status));
  return STEP_ERROR;
}

/* A file without a name, in TMPDIR.  -1: reported. */
static int
open_volume (uint64_t size)
{
  const char *directory = getenv ("TMPDIR");
  CLEANUP_FREE char *name = text_new ("%s/nbdkit-qcow2-validate.XXXXXX",
                                      directory && *directory ? directory : "/tmp");
  int fd = name ? mkostemp (name, O_CLOEXEC) : -1;

  if (fd >= 0)
    unlink (name);
  if (fd >= 0 && ftruncate (fd, size) == 0)
    return fd;
  report_error ("a copy of the filesystem in %s: %m", directory && *directory ? directory
                : "/tmp");
  if (fd >= 0)
    close (fd);
  return -1;
}

struct volume { int fd; uint64_t at; bool full; };

static int
write_piece (void *opaque, const void *buf, uint64_t count)
{
  struct volume *v = opaque;
  ssize_t n;

  for (uint64_t done = 0; buf && done < count; done += n) {
    n = pwrite (v->fd, (const char *) buf + done, count - done, v->at + done);
    if (n <= 0) {
      report_error ("the disk can be read but not copied to TMPDIR: is there enough space?  "
                    "(%m)");
      v->full = true;
      return -1;
    }
  }
  v->at += count;
  return 0;
}

static enum status
check_volume (int fd)
{
  char head[FILESYSTEM_HEAD] = "";
  const char *kind, *const *words;

  if (pread (fd, head, sizeof head, 0) == -1) {
    report_error ("%m");
    return STEP_ERROR;
  }
  words = checker_of (head, &kind);
  if (words)
    return run_program (fd, kind, words);
  fprintf (stderr, "unknown filesystem\n");
  return STEP_SKIPPED;
}

static enum status
check_filesystem (struct image_run *r)
{
  CLEANUP_FREE char *buf = memory_get (PIECE);
  const struct partition *p = r->partition;
  struct volume v = { .fd = -1 };
  enum status status;

  if (!range_within (p->offset, p->size, r->disk.end.size)) {
    report_error ("partition %u is not within the disk", p->number);
    return STEP_ERROR;
  }
  v.fd = buf ? open_volume (p->size) : -1;
  if (v.fd == -1)
    return STEP_ERROR;
  status = each_piece (&r->disk.end, buf, p->offset, p->offset + p->size, write_piece, &v) == 0
    ? check_volume (v.fd) : v.full ? STEP_ERROR : STEP_FAILED;
  close (v.fd);
  return status;
}

static struct partition partitions[MOST_PARTITIONS];
static int nr_partitions;

static enum status
find_partitions (struct image_run *r)
{
  nr_partitions = partitions_find (&r->disk.end, partitions);
  return nr_partitions == -1 ? STEP_FAILED : STEP_OK;
}

static void
check_filesystems (struct image_run *r)
{
  char name[40];

  if (!do_step (r, "partitions", find_partitions))
    return;
  for (int i = 0; i < nr_partitions; i++) {
    r->partition = &partitions[i];
    snprintf (name, sizeof name, partitions[i].number ? "filesystem of partition %u"
              : "filesystem", partitions[i].number);
    do_step (r, name, check_filesystem);
  }
}

/* --- all of it --- */

/* Opens the image.  -1: reported. */
static int
open_image (struct image_run *r)
{
  const struct validate_options *o = r->o;
  CLEANUP_FREE char *directory = r->name[0] == '/' ? NULL : getcwd (NULL, 0);
  CLEANUP_FREE char *path = text_new ("%s%s%s", directory ? directory : "",
                                      directory ? "/" : "", r->name);
  struct disk_options *options;
  struct stat st;

  if (strcmp (r->name, "-") == 0) {
    r->fd = STDIN_FILENO;
    return 0;
  }
  /* A pipe without a writer must not make us wait. */
  r->fd = open (r->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (path == NULL || r->fd == -1 || fstat (r->fd, &st) == -1) {
    report_error ("%s: %m", r->name);
    return -1;
  }
  if (o->policy_only && S_ISFIFO (st.st_mode))
    return fcntl (r->fd, F_SETFL, 0);
  if (!S_ISREG (st.st_mode) && !S_ISBLK (st.st_mode)) {
    report_error ("%s: it is not a file or a block device", r->name);
    return -1;
  }
  r->file = imagefile_new (o->arguments, path, "qcow2", o->passphrase);
  if (r->file == NULL)
    return -1;
  options = &r->file->options;
  options->in_dir = (struct dirfile) { .name = r->name, .dir = r->fd, .opened = true };
  options->backing_format = o->backing_format;
  options->untrusted = o->untrusted;
  if (options->untrusted) {
    options->backing = BACKING_DENY;
    options->data_file = DATA_FILE_DENY;
  }
  return 0;
}

static void
do_steps (struct image_run *r)
{
  const struct validate_options *o = r->o;
  CLEANUP_FREE char *late = text_new ("opening it took longer than %g seconds", o->timeout);

  r->step = o->policy ? "policy" : "check";
  tell (r, STEP_ERROR, late ? late : "", o->timeout);
  if (open_image (r) == -1) {
    add_step (r, STEP_ERROR, 0);
    return;
  }
  if (o->policy && (!do_step (r, "policy", judge) || o->policy_only))
    return;
  if (!do_step (r, "check", check) || (!o->no_read && !do_step (r, "read", read_disk)))
    return;
  if (o->sha256 || o->sums)
    do_step (r, "sha256", compare_sum);
  if (o->fsck)
    check_filesystems (r);
}

void
validate_image (const struct validate_options *o, unsigned i)
{
  struct image_run r = { .o = o, .name = o->names[i], .entry = entry_new (o->names[i]) };
  const int log = memfd_create ("log", MFD_CLOEXEC);
  const char *path = getenv ("PATH");
  CLEANUP_FREE char *programs = text_new ("%s:/usr/local/sbin:/usr/sbin:/sbin",
                                          path ? path : "/usr/local/bin:/usr/bin:/bin");

  if (r.entry == NULL || log == -1 || dup2 (log, STDOUT_FILENO) == -1 ||
      dup2 (log, STDERR_FILENO) == -1 || fcntl (log, F_SETFL, O_APPEND) == -1)
    _exit (EXIT_FAILURE);
  if (programs == NULL || setenv ("PATH", programs, true) == -1)
    _exit (EXIT_FAILURE);
  called = "";
  do_steps (&r);
  pool_tell (jsontext_object ({ "entry", r.entry }), 0);
}

json_t *
validate_entry (const char *name, json_t *last, const char *why, bool late)
{
  json_t *entry = json_incref (json_object_get (last, "entry"));
  json_t *step = json_incref (json_object_get (last, "late"));
  const char *in = json_string_value (json_object_get (step, "name"));

  if (!json_is_object (entry)) {
    json_decref (entry);
    entry = entry_new (name);
  }
  if (late && json_object_get (last, "findings-if-late"))
    json_object_set (entry, "findings", json_object_get (last, "findings-if-late"));
  if (step && !late) {
    json_decref (step);
    step = NULL;
  }
  if (step == NULL && (why || json_object_get (last, "late") ||
                       json_array_size (json_object_get (entry, "steps")) == 0))
    step = step_new (in ? in : "validate", STEP_ERROR, why ? why : "it ended too early", 0);
  if (step)
    json_array_append_new (json_object_get (entry, "steps"), step);
  json_object_set_new (entry, "image", jsontext_string (name));
  if (entry_is_valid (entry))
    return entry;
  json_decref (entry);          /* who has said that? */
  entry = entry_new (name);
  json_array_append_new (json_object_get (entry, "steps"),
                         step_new ("validate", STEP_ERROR, "it said what makes no sense", 0));
  return entry;
}
