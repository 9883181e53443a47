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
 * one goes on.  A file that does not begin as a log does is not touched: it may be a
 * disk.
 *
 * Requests never wait for the file of the log: a thread writes the lines, in their order.
 * (Until it starts, the server serves no client, and the caller writes.)  QUEUE bytes of
 * lines may wait for the thread, and at the end it gets a short time for them.  Of
 * several failures in a row the first one is reported, and so are the warnings about
 * images that are lost.
 *
 * Clients and images may come in any number, so no more than MOST lines are written in a
 * minute, of each level, and of those about connections and others apart: what clients
 * cause does not push out what has happened to an image.  At the end of the minute, one
 * line says how many were left out.
 *
 * Locks: `lock' guards what is not said to be another's, and is taken last; no file is
 * used, and nothing is reported, with it.
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
#include "plugin/writer.h"

#define MOST 600
#define MINUTE_MS 60000
#define QUEUE (1 << 20)
/* Bytes of a string. */
#define MOST_TEXT 1024

static const char *const words[] = {
  [EVENTLOG_ERROR] = "error", [EVENTLOG_WARNING] = "warning", [EVENTLOG_INFO] = "info",
};

/* Lines of one sort. */
struct lines {
  int64_t since_ms;             /* of the minute */
  uint64_t n, omitted;          /* in it; or omitted before it, and not yet said */
};

/* One that waits to be written. */
struct line {
  struct line *next;
  bool matters;                 /* if it cannot be written, it is reported */
  size_t len;
  char text[];
};

static struct {
  pthread_mutex_t early;        /* of threads that write without the one for that */
  pthread_mutex_t lock;
  pthread_cond_t wake;          /* a line, or the end */
  bool json;                    /* constant while the log is open */
  enum eventlog_level level;    /* the same */
  struct lines lines[2][EVENTLOG_INFO + 1];     /* of others, and of connections */
  struct line *first, **end;
  size_t waiting;               /* their bytes */
  bool ending;                  /* the thread writes what there is, and ends */

  bool started;                 /* constant while the server serves, as is: */
  pthread_t thread;
  /* The thread's; before it is started, the caller's. */
  char *path;
  int fd;
  bool cut;                     /* the last line has no end */
  bool failed;                  /* reported */
} e = {
  .early = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1,
};

static atomic_bool is_open;

/* --- the file --- */

/* How a line begins, in both formats; 0 is any digit.  (No file begins with less: each
 * line is one write.) */
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
    if (n == 0 || begins[b][i] == '\0')
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
  const int flags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  int fd = open (e.path, flags);

  /* O_EXCL: not what a symbolic link names, which may be anywhere. */
  if (fd == -1 && errno == ENOENT)
    fd = open (e.path, flags | O_CREAT | O_EXCL, 0640);
  *why = fd >= 0 ? why_not (fd) : errno == EEXIST ? "a link to nothing" : strerror (errno);
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

/* The caller frees the result.  NULL on ENOMEM.  Frees MEMBERS. */
static struct line *
compose (enum eventlog_level level, const char *event, json_t *members)
{
  CLEANUP_FREE char *text = NULL;
  size_t len;
  FILE *const fp = members ? open_memstream (&text, &len) : NULL;
  int r = fp ? print (level, event, members, fp) : -1;
  struct line *line = NULL;

  json_decref (members);
  if (fp)
    r |= ferror (fp) | fclose (fp);
  for (char *end = r ? NULL : strchr (text, '\n'); end && end[1]; end = strchr (end, '\n'))
    *end = ' ';
  if (r == 0)
    line = malloc (sizeof *line + len);
  if (line) {
    *line = (struct line) { .len = len };
    memcpy (line->text, text, len);
  }
  return line;
}

/* Writes it, and frees it. */
static void
write_line (struct line *line)
{
  const char *const unnamed = follow_name (), *const lost = put_line (line->text, line->len);
  const char *const why = lost ? lost : unnamed;

  if (why && !e.failed)
    report_error ("log=%s: %s: %s", e.path,
                  lost ? "cannot write" : "cannot use the file of this name", why);
  e.failed = why != NULL;
  if (lost && line->matters)
    report_error ("%.*s", (int) line->len - 1, line->text);
  free (line);
}

/* --- the thread --- */

/* Called with the lock held, as all until next_line.  LINE may be NULL.  False: it is
 * lost, and freed. */
static bool
append (struct line *line)
{
  if (line == NULL || e.waiting + line->len > QUEUE) {
    free (line);
    return false;
  }
  e.waiting += line->len;
  *e.end = line;
  e.end = &line->next;
  pthread_cond_signal (&e.wake);
  return true;
}

/* The minute has ended: what was left out in it? */
static void
end_minute (struct lines *l, int64_t now)
{
  const size_t sort = l - e.lines[0], levels = EVENTLOG_INFO + 1;

  if (l->omitted && append (compose (EVENTLOG_WARNING, "omitted", jsontext_object (
        { "lines", jsontext_number (l->omitted) },
        { "about", jsontext_string (sort >= levels ? "connections" : "images") },
        { "of", jsontext_string (words[sort % levels]) }))))
    l->omitted = 0;
  l->since_ms = now;
  l->n = 0;
}

/* Ends each minute that is over; of those in which lines were left out, *NEXT is when the
 * first one of the others is.  ALL: they are all over. */
static void
end_minutes (int64_t now, bool all, int64_t *next)
{
  struct lines *const end = e.lines[0] + sizeof e.lines / sizeof (struct lines);

  *next = INT64_MAX;
  for (struct lines *l = e.lines[0]; l < end; l++) {
    if (l->omitted && (all || now >= l->since_ms + MINUTE_MS))
      end_minute (l, now);
    if (l->omitted && l->since_ms + MINUTE_MS < *next)
      *next = l->since_ms + MINUTE_MS;
  }
}

/* Waits for one.  NULL: that was the last one. */
static struct line *
next_line (void)
{
  LOCK_FOR_BLOCK (&e.lock);
  struct line *line;
  int64_t next;

  while (end_minutes (clock_ms (), false, &next), e.first == NULL && !e.ending) {
    const struct timespec ts = { next / 1000, next % 1000 * 1000000 };

    if (next == INT64_MAX)
      pthread_cond_wait (&e.wake, &e.lock);
    else
      pthread_cond_timedwait (&e.wake, &e.lock, &ts);
  }
  line = e.first;
  if (line == NULL)
    return NULL;
  e.waiting -= line->len;
  e.first = line->next;
  if (e.first == NULL)
    e.end = &e.first;
  return line;
}

static void *
write_lines (void *unused)
{
  (void) unused;
  for (struct line *line; (line = next_line ()) != NULL; )
    write_line (line);
  return NULL;
}

/* --- events --- */

static bool
has_room (struct lines *l)
{
  const int64_t now = clock_ms ();

  if (l->since_ms == 0 || now >= l->since_ms + MINUTE_MS)
    end_minute (l, now);
  return l->n < MOST;
}

/* With the lock held.  Frees MEMBERS.  False: it is left out. */
static bool
add_line (struct lines *l, enum eventlog_level level, const char *event, json_t *members)
{
  const bool has = has_room (l);
  struct line *const line = has ? compose (level, event, members) : NULL;

  if (!has)
    json_decref (members);
  if (line)
    line->matters = l == &e.lines[0][EVENTLOG_WARNING];
  if (append (line)) {
    l->n++;
    return true;
  }
  l->omitted++;
  return false;
}

static bool
write_one (bool client, enum eventlog_level level, const char *event, json_t *members)
{
  KEEP_ERRNO_FOR_BLOCK;
  bool added;

  if (!eventlog_is_open () || level > e.level) {
    json_decref (members);
    return false;
  }
  {
    LOCK_FOR_BLOCK (&e.lock);

    added = add_line (&e.lines[client][level], level, event, members);
  }
  if (!e.started) {
    LOCK_FOR_BLOCK (&e.early);

    write_lines (NULL);
  }
  return added;
}

bool
eventlog_write (enum eventlog_level level, const char *event, json_t *members)
{
  return write_one (false, level, event, members);
}

void
eventlog_write_client (enum eventlog_level level, const char *event, json_t *members)
{
  write_one (true, level, event, members);
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
  e.path = strdup (path);
  e.json = json;
  e.level = level;
  memset (e.lines, 0, sizeof e.lines);
  e.end = &e.first;
  e.cut = e.failed = false;
  e.ending = true;
  clock_init_condition (&e.wake);
  e.fd = e.path == NULL ? -1
    : strcmp (path, EVENTLOG_STDERR) == 0 ? STDERR_FILENO : open_file (&why);
  if (e.fd == -1) {
    report_error ("log=%s: %s", path, why ? why : strerror (ENOMEM));
    free (e.path);
    return -1;
  }
  is_open = true;
  return 0;
}

int
eventlog_start (void)
{
  if (!eventlog_is_open ())
    return 0;
  e.ending = false;
  e.started = writer_start (&e.thread, write_lines, NULL) == 0;
  e.ending = !e.started;
  return e.started ? 0 : -1;
}

void
eventlog_close (enum eventlog_level level, const char *event, json_t *members)
{
  int64_t next;

  if (!eventlog_is_open ()) {
    json_decref (members);
    return;
  }
  {
    LOCK_FOR_BLOCK (&e.lock);

    end_minutes (0, true, &next);
  }
  eventlog_write (level, event, members);
  is_open = false;
  if (e.started) {
    pthread_mutex_lock (&e.lock);
    e.ending = true;
    pthread_cond_signal (&e.wake);
    pthread_mutex_unlock (&e.lock);
    if (!writer_end (e.thread))
      return;
  }
  e.started = false;
  if (e.fd != STDERR_FILENO)
    close (e.fd);
  e.fd = -1;
  free (e.path);
}
