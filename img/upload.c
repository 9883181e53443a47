/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is an image accepted that a user has uploaded?
 *
 * The policy judges the first cluster, the length and the end (policy.c).  If it finds
 * nothing, the core reads what the header names: the list of snapshots, the list of
 * bitmaps, and the LUKS header.  Nothing is opened but the image itself.
 *
 * A stream is read to its end, because its length counts, and is not stored.  It is
 * refused as soon as that is certain.  The caller limits time and memory: all that is
 * here may be waited for without an end.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "disk/chaininfo.h"
#include "img/upload.h"

#define PIECE (1u << 20)        /* bytes of a stream at a time */
#define MOST_NEEDED (UINT64_C (1) << QCOW2_MAX_CLUSTER_BITS)

/* --- files --- */

/* Fills BUF as far as the file reaches.  The number of bytes; -1: reported. */
static ssize_t
read_at (int fd, const char *name, void *buf, size_t count, uint64_t offset)
{
  size_t done = 0;
  ssize_t n = 1;

  while (done < count && n > 0) {
    n = pread (fd, (char *) buf + done, count - done, offset + done);
    done += n > 0 ? n : 0;
  }
  if (n >= 0)
    return done;
  report_error ("%s: %m", name);
  return -1;
}

static int
judge_bytes (const struct policy *p, int fd, const char *name, char *buf, json_t **found)
{
  const off_t length = lseek (fd, 0, SEEK_END);
  const uint64_t end = length > OTHERFORMAT_END ? length - OTHERFORMAT_END : 0;
  ssize_t n = read_at (fd, name, buf, POLICY_LEAST, 0);
  struct first_cluster c;

  if (length == -1) {
    report_error ("%s: %m", name);
    return -1;
  }
  if (n >= 0)
    n = read_at (fd, name, buf, policy_needs (buf, n), 0);
  if (n == -1)
    return -1;
  policy_judge_begin (p, name, buf, n, &c, found);
  n = read_at (fd, name, buf, OTHERFORMAT_END, end);
  if (n >= 0) {
    if (c.valid)
      policy_judge_end (p, buf, n, found);
    policy_judge_length (p, &c, length, true, found);
  }
  header_free (&c.h);
  return n == -1 ? -1 : 0;
}

/* With the limits for images that are not trusted, the core refuses what takes much
 * memory.  Whatever it refuses, and for whatever reason, is not accepted. */
static void
judge_with_core (const struct disk_options *options, json_t **found)
{
  CLEANUP_FREE char *why = NULL;
  json_t *info;

  report_keep ();
  info = chaininfo_describe (options, options->path, false);
  why = report_take_kept ();
  report_end_keeping (false);
  if (info == NULL)
    finding_add (found, "unsupported", "%.*s", why ? (int) strcspn (why, "\n") : 0,
                 why ? why : "");
  json_decref (info);
}

int
upload_judge_file (const struct policy *p, int fd, const struct disk_options *options,
                   json_t **found)
{
  CLEANUP_FREE char *buf = memory_get (MOST_NEEDED);

  if (buf == NULL || judge_bytes (p, fd, options->path, buf, found) == -1)
    return -1;
  if (json_array_size (*found) == 0)
    judge_with_core (options, found);
  return 0;
}

/* --- streams --- */

struct stream {
  int fd;
  char *buf;                    /* the last bytes, of MOST_NEEDED + PIECE */
  size_t n;
  uint64_t length;              /* so far */
};

/* Adds up to MOST bytes, of PIECE.  Returns their number; 0: this is the end; -1:
 * reported. */
static ssize_t
read_more (struct stream *s, size_t most)
{
  struct pollfd p = { .fd = s->fd, .events = POLLIN };
  ssize_t n;

  /* (A named pipe is not at its end before a process writes to it.) */
  do
    n = poll (&p, 1, -1) == -1 ? -1 : read (s->fd, s->buf + s->n, most);
  while (n == -1 && errno == EINTR);
  if (n == -1)
    report_error ("the stream: %m");
  else {
    s->n += n;
    s->length += n;
  }
  return n;
}

static int
read_until (struct stream *s, size_t enough)
{
  ssize_t n = 1;

  while (s->n < enough && n > 0)
    n = read_more (s, min64 (enough - s->n, PIECE));
  return n == -1 ? -1 : 0;
}

static int
judge_rest (const struct policy *p, const struct first_cluster *c, struct stream *s,
            json_t **found)
{
  ssize_t n = 1;

  policy_judge_length (p, c, s->length, false, found);
  while (json_array_size (*found) == 0 && n > 0) {
    if (s->n > OTHERFORMAT_END) {
      memmove (s->buf, s->buf + s->n - OTHERFORMAT_END, OTHERFORMAT_END);
      s->n = OTHERFORMAT_END;
    }
    n = read_more (s, PIECE);
    if (n > 0)
      policy_judge_length (p, c, s->length, false, found);
  }
  if (n == 0) {
    policy_judge_end (p, s->buf + (s->n > OTHERFORMAT_END ? s->n - OTHERFORMAT_END : 0),
                      min64 (s->n, OTHERFORMAT_END), found);
    policy_judge_length (p, c, s->length, true, found);
  }
  return n == -1 ? -1 : 0;
}

int
upload_judge_stream (const struct policy *p, int fd, void (*header_came) (void *),
                     void *opaque, json_t **found)
{
  CLEANUP_FREE char *buf = memory_get (MOST_NEEDED + PIECE);
  struct stream s = { .fd = fd, .buf = buf };
  struct first_cluster c;
  int r;

  if (buf == NULL || read_until (&s, POLICY_LEAST) == -1 ||
      read_until (&s, policy_needs (s.buf, s.n)) == -1)
    return -1;
  header_came (opaque);
  policy_judge_begin (p, "the stream", s.buf, s.n, &c, found);
  r = judge_rest (p, &c, &s, found);
  header_free (&c.h);
  return r;
}
