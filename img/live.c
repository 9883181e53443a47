/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a command change a disk that a server is using?
 *
 * It asks the server for it, in QMP, on the socket of control= (or of
 * qemu-storage-daemon).  The server answers when the change is durable.  What takes long
 * is a job of the server: it tells by events how it has ended, and goes on if this
 * program is killed.
 *
 * The first operand of the command is the name of the disk as QMP knows it (device), or
 * of its file.
 *
 * Answers and events are lines of JSON.  They come from a server that may not be trusted,
 * so a line has a limit, and what is not as it should be is an error.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/text.h"
#include "storage/nbduri.h"
#include "img/live.h"
#include "img/progress.h"

#define MOST_LINE (64u << 20)
#define READ_SIZE 65536
/* For the greeting.  (QEMU serves one client after the other.) */
#define GREETING_MS 30000
/* How often a job is asked how far it is. */
#define ASK_MS 200

/* The type of jobs that are no block jobs. */
#define AMEND "amend"

struct live {
  const char *socket;           /* its name */
  int fd;
  char *buf;                    /* what was received: `len' bytes */
  size_t len;

  json_t *disks;                /* what the server tells of its disks */
  json_t *exports;              /* of a server that only knows nodes; or NULL */
  const json_t *inserted;       /* of the one that is meant; NULL: it does not */
  const char *device;

  /* The job. */
  char job[64];                 /* its id; "": none */
  bool plain;                   /* it is no block job, and is to be dismissed at its
                                   end */
  bool ready, ended, cancelled;
  char *why;                    /* it has failed */
};

static int
no_memory (const struct live *l)
{
  return report_refusal (ENOMEM, "%s: no memory for a command", l->socket);
}

static int
no_server (const struct live *l, const char *why)
{
  return report_refusal (EIO, "%s: %s", l->socket, why);
}

/* --- lines --- */

static int
say (const struct live *l, json_t *command)
{
  CLEANUP_FREE char *text = command ? json_dumps (command, JSON_COMPACT) : NULL;
  size_t len = text ? strlen (text) : 0;

  json_decref (command);
  if (text == NULL)
    return no_memory (l);
  text[len++] = '\n';           /* in place of the NUL */
  for (size_t at = 0; at < len; ) {
    const ssize_t n = send (l->fd, text + at, len - at, MSG_NOSIGNAL);

    if (n == -1 && errno != EINTR)
      return no_server (l, strerror (errno));
    at += n > 0 ? n : 0;
  }
  return 0;
}

/* Receives more, and waits for it up to MS (-1: as long as it takes).  1; 0: nothing
 * came; or -1. */
static int
receive (struct live *l, int ms)
{
  struct pollfd p = { .fd = l->fd, .events = POLLIN };
  char *buf;
  ssize_t n;

  if (poll (&p, 1, ms) < 1)
    return 0;
  if (l->len > MOST_LINE)
    return no_server (l, "the server's answer has no end");
  buf = memory_resize (l->buf, l->len + READ_SIZE, 1);
  if (buf == NULL)
    return -1;
  l->buf = buf;
  n = recv (l->fd, buf + l->len, READ_SIZE, 0);
  if (n == -1 && errno == EINTR)
    return 0;
  if (n <= 0)
    return no_server (l, n == 0 ? "the server has closed the connection"
                      : strerror (errno));
  l->len += n;
  return l->buf[0] == '{' ? 1 : no_server (l, "this is no QMP server");
}

/* The first message that was received.  *MESSAGE: NULL: none is complete. */
static int
take_line (struct live *l, json_t **message)
{
  const char *end = l->len ? memchr (l->buf, '\n', l->len) : NULL;
  size_t n;

  *message = NULL;
  if (end == NULL)
    return 0;
  n = end + 1 - l->buf;
  *message = jsontext_read (l->buf, n);
  l->len -= n;
  memmove (l->buf, l->buf + n, l->len);
  return json_is_object (*message) ? 0 : no_server (l, "this is no QMP server");
}

/* The next message.  *MESSAGE: NULL: none has come in MS. */
static int
hear (struct live *l, int ms, json_t **message)
{
  int r = take_line (l, message);

  while (r == 0 && *message == NULL) {
    const int more = receive (l, ms);

    if (more == -1 || (more == 0 && ms >= 0))
      return more;
    r = take_line (l, message);
  }
  if (r == -1) {
    json_decref (*message);
    *message = NULL;
  }
  return r;
}

/* --- events of our job --- */

static void
note_event (struct live *l, const json_t *message)
{
  const char *event = jsontext_text (message, "event");
  const json_t *data = json_object_get (message, "data");
  const char *why = jsontext_text (data, "error");

  if (l->plain && strcmp (jsontext_text (data, "id"), l->job) == 0 &&
      strcmp (jsontext_text (data, "status"), "concluded") == 0)
    l->ended = true;
  if (l->job[0] == '\0' || strcmp (jsontext_text (data, "device"), l->job) != 0)
    return;
  if (strcmp (event, "BLOCK_JOB_READY") == 0)
    l->ready = true;
  if (strcmp (event, "BLOCK_JOB_CANCELLED") == 0)
    l->ended = l->cancelled = true;
  if (strcmp (event, "BLOCK_JOB_COMPLETED") != 0)
    return;
  l->ended = true;
  if (*why)
    l->why = jsontext_bytes (why);
}

/* --- commands --- */

/* What the server says of an error. */
static int
refused (const struct live *l, const json_t *error)
{
  CLEANUP_FREE char *why = jsontext_bytes (jsontext_text (error, "desc"));

  return report_refusal (EINVAL, "%s: %s", l->socket,
                         why && *why ? why : "the server refuses the command");
}

int
live_ask (struct live *l, const char *command, json_t *arguments,
          json_t **answer)
{
  json_t *message, *result;
  int r = arguments == NULL ? no_memory (l) : say (l, jsontext_object (
    { "execute", jsontext_string (command) }, { "arguments", arguments }));

  while (r == 0) {
    if (hear (l, -1, &message) == -1)
      return -1;
    result = json_object_get (message, "return");
    if (result) {
      *answer = json_incref (result);
      json_decref (message);
      return 0;
    }
    if (json_object_get (message, "error"))
      r = refused (l, json_object_get (message, "error"));
    else
      note_event (l, message);
    json_decref (message);
  }
  return r;
}

int
live_do (struct live *l, const char *command, json_t *arguments)
{
  json_t *answer;

  if (live_ask (l, command, arguments, &answer) == -1)
    return -1;
  json_decref (answer);
  return 0;
}

/* --- jobs --- */

static int
do_to_job (struct live *l, const char *command)
{
  return live_do (l, command, jsontext_object ({ "id", jsontext_string (l->job) }));
}

/* What has become of one that is no block job. */
static int
dismiss (struct live *l)
{
  json_t *jobs, *job;
  size_t i;

  if (live_ask (l, "query-jobs", json_object (), &jobs) == -1)
    return -1;
  json_array_foreach (jobs, i, job)
    if (strcmp (jsontext_text (job, "id"), l->job) == 0 && json_object_get (job, "error"))
      l->why = jsontext_bytes (jsontext_text (job, "error"));
  json_decref (jobs);
  return do_to_job (l, "job-dismiss");
}

/* Cancels it if the user wants that. */
static int
show_progress (struct live *l, bool *stopped)
{
  bool wanted = true, there = false;
  json_t *jobs, *job;
  size_t i;

  if (live_ask (l, "query-jobs", json_object (), &jobs) == -1)
    return -1;
  json_array_foreach (jobs, i, job)
    if (strcmp (jsontext_text (job, "id"), l->job) == 0) {
      there = true;
      wanted = progress_step (NULL,
        json_integer_value (json_object_get (job, "current-progress")),
        json_integer_value (json_object_get (job, "total-progress")), 0);
    }
  json_decref (jobs);
  if (!there && !l->ended)
    return no_server (l, "the server has lost the job");
  if (wanted || *stopped || l->ended)
    return 0;
  *stopped = true;
  return do_to_job (l, "job-cancel");
}

static int
await_job (struct live *l)
{
  bool stopped = false, completing = false;
  json_t *message;

  while (!l->ended) {
    if (show_progress (l, &stopped) == -1)
      return -1;
    if (l->ready && !completing && !stopped) {
      completing = true;
      if (do_to_job (l, "job-complete") == -1) {
        do_to_job (l, "job-cancel");
        return -1;
      }
    }
    if (l->ended)
      break;
    if (hear (l, ASK_MS, &message) == -1)
      return -1;
    if (message)
      note_event (l, message);
    json_decref (message);
  }
  if (l->plain && dismiss (l) == -1)
    return -1;
  if (l->cancelled || l->why) {
    report_error ("%s: %s", l->socket, l->why ? l->why : "the job was cancelled");
    errno = l->why ? EIO : ECANCELED;
    return -1;
  }
  return 0;
}

/* By which a job is known to be ours: PROGRAM.PID.NAMESPACE.  (In another namespace the
 * same number means another process.) */
static void
name_job (char id[64], long pid)
{
  struct stat namespace = { .st_ino = 0 };

  stat ("/proc/self/ns/pid", &namespace);
  snprintf (id, 64, "%s.%ld.%ju", PROGRAM, pid, (uintmax_t) namespace.st_ino);
}

/* Ends what this program had begun, and was killed. */
static int
end_orphans (struct live *l)
{
  const size_t len = strlen (PROGRAM ".");
  json_t *jobs, *job, *message;
  char ours[64];
  size_t i;
  int r = live_ask (l, "query-jobs", json_object (), &jobs);

  if (r == -1)
    return -1;
  json_array_foreach (jobs, i, job) {
    const char *id = jsontext_text (job, "id");

    const long pid = strncmp (id, PROGRAM ".", len) == 0 ? atol (id + len) : 0;

    name_job (ours, pid);
    if (pid <= 0 || strcmp (id, ours) != 0 || kill (pid, 0) == 0 || errno != ESRCH)
      continue;
    strcpy (l->job, ours);
    l->plain = strcmp (jsontext_text (job, "type"), AMEND) == 0;
    l->ended = strcmp (jsontext_text (job, "status"), "concluded") == 0;
    for (r = l->ended ? 0 : do_to_job (l, "job-cancel"); r == 0 && !l->ended;
         json_decref (message)) {
      r = hear (l, -1, &message);
      if (r == 0)
        note_event (l, message);
    }
    if (r == 0 && l->plain)
      r = dismiss (l);
    l->ended = l->ready = l->cancelled = l->plain = false;
    free (l->why);
    l->why = NULL;
  }
  json_decref (jobs);
  return r;
}

int
live_job (struct live *l, const struct arguments *a, const char *command,
          json_t *arguments)
{
  int r;

  if (end_orphans (l) == -1) {
    json_decref (arguments);
    return -1;
  }
  name_job (l->job, getpid ());
  l->plain = strcmp (command, LIVE_AMEND) == 0;
  arguments = jsontext_add (arguments, { "job-id", jsontext_string (l->job) });
  progress_begin (a, false);
  progress_step (NULL, 0, 1, 0);        /* from now on, a signal cancels the job */
  r = live_do (l, command, arguments) == -1 ? -1 : await_job (l);
  progress_end (r == 0);
  return r;
}

/* --- which disk? --- */

static int
not_there (const struct live *l)
{
  return report_refusal (ENOENT, "%s: no disk that this server is using is called '%s', "
                         "or is in that file", l->socket, l->device);
}

/* Is the file NAME the one that the server calls OTHER?  (A relative name is of no use:
 * the server does not tell its current directory.) */
static bool
same_file (const char *name, const char *other)
{
  CLEANUP_FREE char *bytes = jsontext_bytes (other);
  struct stat a, b;

  return bytes && bytes[0] == '/' && stat (name, &a) == 0 && stat (bytes, &b) == 0 &&
    a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Does an export use it?  Others of QEMU's nodes are below one, or not used any more. */
static bool
is_exported (const struct live *l, const char *node)
{
  const json_t *export;
  size_t i;

  json_array_foreach (l->exports, i, export)
    if (strcmp (jsontext_text (export, "node-name"), node) == 0)
      return true;
  return l->exports == NULL;
}

/* Is the disk called NAME; or (BY_FILE) is it in that file?  The elements of disks are
 * devices (with `inserted'), or nodes. */
static bool
find_disk (struct live *l, const char *name, bool by_file)
{
  const json_t *disk;
  size_t i;

  json_array_foreach (l->disks, i, disk) {
    const json_t *in = json_object_get (disk, "inserted"), *inserted = in ? in : disk;
    const char *node = jsontext_text (inserted, "node-name");
    const char *device = in ? jsontext_text (disk, "device") : node;

    if (!is_exported (l, node) ||
        (by_file ? !same_file (name, jsontext_text (inserted, "file"))
         : strcmp (device, name) != 0 && strcmp (node, name) != 0))
      continue;
    l->inserted = inserted;
    l->device = device;
    return true;
  }
  return false;
}

/* QEMU's storage daemon has no devices, only nodes.  A server of a directory only tells
 * of images in use, but knows the names of all. */
int
live_use (struct live *l, const char *name)
{
  json_decref (l->disks);
  json_decref (l->exports);
  l->disks = l->exports = NULL;
  l->inserted = NULL;
  l->device = name;
  if (live_ask (l, "query-block", json_object (), &l->disks) == -1)
    return -1;
  if (json_array_size (l->disks) == 0) {
    json_decref (l->disks);
    l->disks = NULL;
    if (live_ask (l, "query-named-block-nodes", json_object (), &l->disks) == -1 ||
        live_ask (l, "query-block-exports", json_object (), &l->exports) == -1)
      return -1;
  }
  if (!find_disk (l, name, false))
    find_disk (l, name, true);
  return l->inserted == NULL && json_array_size (l->disks) > 0 ? not_there (l) : 0;
}

bool
live_is_known (const struct live *l)
{
  return l->inserted != NULL;
}

const char *
live_device (const struct live *l)
{
  return l->device;
}

const json_t *
live_inserted (const struct live *l)
{
  if (l->inserted == NULL)
    not_there (l);
  return l->inserted;
}

const json_t *
live_image (const struct live *l)
{
  return json_object_get (live_inserted (l), "image");
}

/* --- its exports --- */

const struct option option_nbd = {
  0, "nbd", "URI", "the server's address for NBD, if it is not one of its sockets on this "
  "host, or needs TLS (requires --control)"
};

static int
no_uri (const char *name, const char *why)
{
  return report_refusal (EINVAL, "%s: %s", name, why);
}

/* SNAPSHOT: NULL, or: *PREFIX is the export of that internal snapshot. */
static int
find_export (struct live *l, const char *name, const char *device, const char *snapshot,
             const char *nbd, char **uri, char **prefix)
{
  json_t *arguments = jsontext_object ({ "device", jsontext_string (device) });
  const char *there, *export;
  json_t *where;

  if (nbd && !nbduri_is (nbd)) {
    report_error ("--nbd: '%s' is not an NBD URI", nbd);
    errno = EINVAL;
    json_decref (arguments);
    return -1;
  }
  if (snapshot)
    arguments = jsontext_add (arguments, { "snapshot", jsontext_string (snapshot) });
  if (live_ask (l, "x-query-nbd-export", arguments, &where) == -1)
    return -1;
  there = nbd ? nbd : json_string_value (json_object_get (where, "uri"));
  export = json_string_value (json_object_get (where, "export"));
  *prefix = export ? jsontext_bytes (export) : NULL;
  *uri = there ? strdup (there) : NULL;
  json_decref (where);
  if (there == NULL)
    return no_uri (name, "the server does not know on which socket it can be reached: "
                   "--nbd URI says it");
  return *prefix && *uri ? 0 : no_memory (l);
}

int
live_find_server (struct live *l, const char *name, const char *device, const char *nbd,
                  char **uri, char **prefix)
{
  return find_export (l, name, device, NULL, nbd, uri, prefix);
}

char *
live_uri (const char *name, const char *uri, const char *prefix, const char *export)
{
  CLEANUP_FREE char *whole =
    text_new ("%s%s%s", prefix, *prefix && *export ? "/" : "", export);
  char *other = whole ? nbduri_with_export (uri, whole) : NULL;

  if (other == NULL && whole && errno == EINVAL)
    report_error ("%s: the NBD URI of its server is malformed", name);
  else if (other == NULL)
    report_error ("%s: no memory for its exports", name);
  return other;
}

char *
live_export (struct live *l, const struct arguments *a, const char *snapshot)
{
  CLEANUP_FREE char *uri = NULL, *export = NULL;

  return find_export (l, a->operands[0], l->device, snapshot, value_of (a, &option_nbd),
                      &uri, &export) == -1 ? NULL
    : live_uri (a->operands[0], uri, export, "");
}

/* --- what is below it --- */

/* Is NAME the file that UPPER lies over?  Relative names are relative to DIRECTORY. */
static bool
is_below (const json_t *upper, const char *name, const char *directory)
{
  const char *file = jsontext_text (json_object_get (upper, "backing-image"), "filename");
  CLEANUP_FREE char *path = text_new ("%s%s", name[0] == '/' ? "" : directory, name);

  return strcmp (jsontext_text (upper, "backing-filename"), name) == 0 ||
    strcmp (file, name) == 0 || (path && same_file (path, file));
}

const json_t *
live_below (const struct live *l, const char *name)
{
  const json_t *top = live_image (l), *upper = top, *below;
  CLEANUP_FREE char *directory = jsontext_bytes (jsontext_text (top, "filename"));
  char *slash = directory ? strrchr (directory, '/') : NULL;

  if (slash)
    slash[1] = '\0';
  for (; (below = json_object_get (upper, "backing-image")); upper = below)
    if (is_below (upper, name, slash ? directory : ""))
      return below;
  if (top)
    report_error ("-b: '%s' is not in the backing chain of %s", name, l->device);
  return NULL;
}

/* --- the whole command --- */

static int
connect_to (struct live *l)
{
  struct sockaddr_un to = { .sun_family = AF_UNIX };
  json_t *greeting = NULL;
  bool is_qmp;

  if (strlen (l->socket) >= sizeof to.sun_path)
    return no_server (l, "the name of the socket is too long");
  strcpy (to.sun_path, l->socket);
  l->fd = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (l->fd == -1 || connect (l->fd, (struct sockaddr *) &to, sizeof to) == -1)
    return no_server (l, strerror (errno));
  if (hear (l, GREETING_MS, &greeting) == -1)
    return -1;
  is_qmp = json_object_get (greeting, "QMP") != NULL;   /* (NULL: it says nothing) */
  json_decref (greeting);
  return is_qmp ? live_do (l, "qmp_capabilities", json_object ())
    : no_server (l, "this is no QMP server");
}

/* Most options are about how this program would open the image. */
static int
check_options (const struct arguments *a)
{
  char word[32];

  for (unsigned i = 0; i < a->nr_given; i++) {
    const struct option *const *o = a->command->live_options;

    while (*o && *o != a->given[i].option)
      o++;
    if (*o == NULL) {
      report_error ("%s cannot be used with --control", option_word (a->given[i].option,
                                                                     word));
      return -1;
    }
  }
  return 0;
}

/* The server has opened the disk: -f can only say the same.  (Images that it opens on
 * demand are qcow2.) */
static int
check_format (const struct live *l, const struct arguments *a)
{
  const char *format = value_of (a, &option_format);
  const char *is = l->inserted ? jsontext_text (l->inserted, "drv") : "qcow2";

  if (format == NULL || strcmp (format, is) == 0)
    return 0;
  return report_refusal (EINVAL, "-f %s: the server uses %s as %s", format, l->device,
                         is);
}

int
live_run (const struct arguments *a, const char *socket)
{
  struct live l = { .socket = socket, .fd = -1 };
  int r = -1;

  if (a->command->live && a->command->most > 0 && a->nr_operands == 0)
    report_error ("--control: %s needs the name of a disk", a->command->name);
  else if (a->command->live == NULL)
    report_error ("%s cannot be used with --control: it needs an image that no server uses",
                  a->command->name);
  else if (check_options (a) == 0 && connect_to (&l) == 0 &&
           (a->command->finds_disks ||
            (live_use (&l, a->operands[0]) == 0 && check_format (&l, a) == 0)))
    r = a->command->live (a, &l);
  if (l.fd >= 0)
    close (l.fd);
  json_decref (l.disks);
  json_decref (l.exports);
  free (l.buf);
  free (l.why);
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
