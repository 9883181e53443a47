/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What has happened, and to which image?
 *
 * The file of log= gets a line for each event: its time, level and name, and what belongs
 * to it, as text for people or in JSON.  What comes from outside cannot forge a line, nor
 * a part of one: strings are in quotes, and escaped.
 *
 * A line is one write at the end of the file.  Before it, the name is looked at: once the
 * file was moved away (logrotate), a new one is made.  If that is not possible, the old
 * one goes on.  A file that does not begin as a log does is not touched: it may be a disk.
 *
 * Nobody waits for the log: a line that cannot be written at once is lost.  The first such
 * failure in a row is reported.  Clients and images may come in any number, so no more
 * than MOST lines are written in a minute, those about connections and others apart; then
 * one says how many were left out.
 *
 * Locks: `lock' guards all of it, and is taken last; but errors are reported without it.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/clock.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "plugin/eventlog.h"

#define MOST 600
#define MINUTE_MS 60000
/* Bytes of a string. */
#define MOST_TEXT 1024

static const char *const words[] = {
  [EVENTLOG_ERROR] = "error", [EVENTLOG_WARNING] = "warning", [EVENTLOG_INFO] = "info",
};

/* Lines of one sort. */
struct lines {
  int64_t since_ms;             /* of the minute */
  uint64_t n, omitted;          /* in it */
};

static struct {
  pthread_mutex_t lock;
  const char *path;             /* constant while the log is open, as are json, level */
  bool json;
  enum eventlog_level level;
  int fd;
  struct lines client, other;
  bool cut;                     /* the last line has no end */
  bool failed;                  /* reported */
} e = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1 };

static atomic_bool is_open;

/* --- the file --- */

/* How a line begins, in both formats; 0 is any digit. */
static bool
begins_as_log (const char *bytes, size_t n)
{
  static const char *const begins[] = { "0000-00-00T", "{\"time\": \"" };

  for (size_t b = 0; b < 2; b++) {
    size_t i = 0;

    while (i < n && begins[b][i] &&
           (begins[b][i] == '0' ? bytes[i] >= '0' && bytes[i] <= '9'
            : bytes[i] == begins[b][i]))
      i++;
    if (i == n || begins[b][i] == '\0')
      return true;
  }
  return false;
}

/* NULL: it may be used. */
static const char *
why_not (int fd)
{
  struct stat st;
  char bytes[16];
  ssize_t n;

  if (fstat (fd, &st) == -1)
    return strerror (errno);
  if (S_ISCHR (st.st_mode) || S_ISFIFO (st.st_mode))
    return NULL;
  n = S_ISREG (st.st_mode) ? pread (fd, bytes, sizeof bytes, 0) : 1;
  if (n == -1)
    return strerror (errno);
  return S_ISREG (st.st_mode) && begins_as_log (bytes, n) ? NULL
    : "it is something else than a log of events";
}

/* Returns the descriptor; or -1, with *WHY. */
static int
open_file (const char **why)
{
  const int fd = open (e.path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY |
                       O_NONBLOCK, 0640);

  *why = fd == -1 ? strerror (errno) : why_not (fd);
  if (fd == -1 || *why == NULL)
    return fd;
  close (fd);
  return -1;
}

/* Returns NULL, or why the file of that name cannot be used. */
static const char *
follow_name (void)
{
  struct stat named, ours;
  const char *why;
  int fd;

  if (e.fd == STDERR_FILENO ||
      (stat (e.path, &named) == 0 && fstat (e.fd, &ours) == 0 &&
       named.st_dev == ours.st_dev && named.st_ino == ours.st_ino))
    return NULL;
  fd = open_file (&why);
  if (fd == -1)
    return why;
  close (e.fd);
  e.fd = fd;
  e.cut = false;
  return NULL;
}

/* Returns NULL, or why it was not written. */
static const char *
put_line (const char *line, size_t len)
{
  ssize_t n;

  /* (What is left of a line that was cut gets its end.) */
  if (e.cut && write (e.fd, "\n", 1) != 1)
    return strerror (errno);
  e.cut = false;
  n = write (e.fd, line, len);
  e.cut = n > 0 && (size_t) n < len;
  return n == -1 ? strerror (errno) : e.cut ? "no space" : NULL;
}

/* --- lines --- */

static void
put_time (char *text, size_t size)
{
  struct timespec now;
  struct tm tm;
  char seconds[32];

  clock_gettime (CLOCK_REALTIME, &now);
  gmtime_r (&now.tv_sec, &tm);
  strftime (seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &tm);
  snprintf (text, size, "%s.%03ldZ", seconds, now.tv_nsec / 1000000);
}

/* Values are as in JSON, so the only ends of lines are those of jsontext_print. */
static int
print_text (const char *now, enum eventlog_level level, const char *event,
            json_t *members, FILE *fp)
{
  const char *key;
  json_t *value;
  int r = 0;

  fprintf (fp, "%s %s %s\n", now, words[level], event);
  json_object_foreach (members, key, value) {
    fprintf (fp, "%s=", key);
    r |= jsontext_print (json_incref (value), 0, fp);
  }
  return r;
}

static int
print (enum eventlog_level level, const char *event, json_t *members, FILE *fp)
{
  char now[64];
  json_t *line;

  put_time (now, sizeof now);
  if (!e.json)
    return print_text (now, level, event, members, fp);
  line = jsontext_object (
    { "time", jsontext_string (now) },
    { "level", jsontext_string (words[level]) },
    { "event", jsontext_string (event) });
  if (line)
    json_object_update (line, members);
  return jsontext_print (line, 0, fp);
}

/* Returns NULL, or why it was not written.  Frees MEMBERS. */
static const char *
write_line (enum eventlog_level level, const char *event, json_t *members)
{
  CLEANUP_FREE char *text = NULL;
  size_t len;
  FILE *const fp = members ? open_memstream (&text, &len) : NULL;
  int r = fp ? print (level, event, members, fp) : -1;

  json_decref (members);
  if (fp)
    r |= ferror (fp) | fclose (fp);
  for (char *end = r ? NULL : strchr (text, '\n'); end && end[1]; end = strchr (end, '\n'))
    *end = ' ';
  return r ? strerror (ENOMEM) : put_line (text, len);
}

/* --- how many? --- */

/* A minute has ended: what was left out in it? */
static const char *
end_minute (struct lines *l, int64_t now)
{
  const uint64_t omitted = l->omitted;

  *l = (struct lines) { .since_ms = now };
  return omitted == 0 ? NULL : write_line (EVENTLOG_WARNING, "omitted", jsontext_object (
    { "lines", jsontext_number (omitted) },
    { "about", jsontext_string (l == &e.client ? "connections" : "images") }));
}

static bool
has_room (struct lines *l)
{
  const int64_t now = clock_ms ();

  if (l->since_ms == 0 || now >= l->since_ms + MINUTE_MS)
    end_minute (l, now);
  l->omitted += l->n == MOST;
  return l->n < MOST && ++l->n;
}

static void
write_one (struct lines *l, enum eventlog_level level, const char *event,
           json_t *members)
{
  KEEP_ERRNO_FOR_BLOCK;
  const char *why = NULL, *lost = NULL;
  bool tell = false;

  if (!eventlog_is_open () || level > e.level) {
    json_decref (members);
    return;
  }
  {
    LOCK_FOR_BLOCK (&e.lock);

    why = follow_name ();
    if (has_room (l))
      lost = write_line (level, event, members);
    else
      json_decref (members);
    if (lost)
      why = lost;
    tell = why && !e.failed;
    e.failed = why != NULL;
  }
  if (tell)
    report_error ("log=%s: %s: %s", e.path,
                  lost ? "cannot write" : "cannot use the file of this name", why);
}

void
eventlog_write (enum eventlog_level level, const char *event, json_t *members)
{
  write_one (&e.other, level, event, members);
}

void
eventlog_write_client (enum eventlog_level level, const char *event, json_t *members)
{
  write_one (&e.client, level, event, members);
}

json_t *
eventlog_text (const char *text)
{
  char cut[MOST_TEXT + sizeof "..."];

  if (strlen (text) <= MOST_TEXT)
    return jsontext_string (text);
  snprintf (cut, sizeof cut, "%.*s...", MOST_TEXT, text);
  return jsontext_string (cut);
}

/* --- begin and end --- */

bool
eventlog_is_open (void)
{
  return is_open;
}

int
eventlog_open (const char *path, bool json, enum eventlog_level level)
{
  const char *why = NULL;

  if (path == NULL)
    return 0;
  e.path = path;
  e.json = json;
  e.level = level;
  e.client = e.other = (struct lines) { .n = 0 };
  e.cut = e.failed = false;
  e.fd = strcmp (path, EVENTLOG_STDERR) == 0 ? STDERR_FILENO : open_file (&why);
  if (e.fd == -1) {
    report_error ("log=%s: %s", path, why);
    return -1;
  }
  is_open = true;
  return 0;
}

void
eventlog_close (void)
{
  if (!eventlog_is_open ())
    return;
  end_minute (&e.client, 0);
  end_minute (&e.other, 0);
  is_open = false;
  if (e.fd != STDERR_FILENO)
    close (e.fd);
  e.fd = -1;
}
