/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Who has used which export, and what came of it?
 *
 * A connection has a line when it gets its export, or does not, and one when it ends.  Of
 * the requests that fail in between only the first has a line: the last line counts them.
 *
 * The peer is asked for its name once: later it may have gone.
 *
 * Locks: none of its own.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/cleanup.h"
#include "util/clock.h"
#include "util/jsontext.h"
#include "plugin/clientlog.h"
#include "plugin/eventlog.h"

struct clientlog {
  json_t *who;                  /* which client of which export; constant */
  int64_t since_ms;
  atomic_bool failed;           /* a request */
};

/* Such as "10.0.0.7:4711"; of a local client, its process and user.  NULL on ENOMEM. */
static json_t *
describe_client (void)
{
  struct sockaddr_storage addr;
  socklen_t len = sizeof addr;
  char host[NI_MAXHOST], port[NI_MAXSERV], text[NI_MAXHOST + NI_MAXSERV + 4];

  /* With nbdkit -s, the first thread has the only client, perhaps on no socket. */
  if (syscall (SYS_gettid) == getpid ())
    return jsontext_string ("stdio");
  if (nbdkit_peer_name ((struct sockaddr *) &addr, &len) == -1)
    return jsontext_string ("unknown");
  if (addr.ss_family == AF_UNIX)
    snprintf (text, sizeof text, "pid %" PRId64 ", uid %" PRId64, nbdkit_peer_pid (),
              nbdkit_peer_uid ());
  else if (getnameinfo ((struct sockaddr *) &addr, len, host, sizeof host, port,
                        sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) == 0)
    snprintf (text, sizeof text, addr.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
              port);
  else
    snprintf (text, sizeof text, "address family %d", addr.ss_family);
  return jsontext_string (text);
}

static json_t *
describe (const char *image, const char *export)
{
  return jsontext_object (
    { "image", eventlog_text (image) },
    { "export", eventlog_text (export) },
    { "client", describe_client () },
    { "tls", json_boolean (nbdkit_is_tls ()) });
}

struct clientlog *
clientlog_open (const char *image, const char *export, bool writable)
{
  KEEP_ERRNO_FOR_BLOCK;
  struct clientlog *const l = eventlog_is_open () ? calloc (1, sizeof *l) : NULL;

  if (l == NULL)
    return NULL;
  l->since_ms = clock_ms ();
  l->who = describe (image, export);
  eventlog_write_client (EVENTLOG_INFO, "connect", jsontext_add (json_copy (l->who),
    { "writable", json_boolean (writable) }));
  return l;
}

void
clientlog_close (struct clientlog *l, const struct iocounts *c)
{
  KEEP_ERRNO_FOR_BLOCK;
  uint64_t operations = 0, errors = 0;

  if (l == NULL)
    return;
  for (int k = 0; k < IOSTATS_KINDS; k++) {
    operations += c->of[k].operations;
    errors += c->of[k].failed;
  }
  eventlog_write_client (EVENTLOG_INFO, "disconnect", jsontext_add (l->who,
    { "ms", json_integer (clock_ms () - l->since_ms) },
    { "operations", jsontext_number (operations) },
    { "errors", jsontext_number (errors) },
    { "bytes_read", jsontext_number (c->of[IOSTATS_READ].bytes) },
    { "bytes_written", jsontext_number (c->of[IOSTATS_WRITE].bytes) }));
  free (l);
}

void
clientlog_failed (struct clientlog *l, enum iostats_kind kind, uint64_t offset,
                  uint64_t bytes)
{
  KEEP_ERRNO_FOR_BLOCK;
  const char *const why = strerror (errno);

  if (l == NULL || atomic_exchange (&l->failed, true))
    return;
  eventlog_write_client (EVENTLOG_ERROR, "request-failed", jsontext_add (
    json_copy (l->who),
    { "kind", jsontext_string (iostats_words[kind]) },
    { "offset", jsontext_number (offset) },
    { "bytes", jsontext_number (bytes) },
    { "text", jsontext_string (why) }));
}

void
clientlog_refused (const char *image, const char *export, const char *why)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (eventlog_is_open ())
    eventlog_write_client (EVENTLOG_WARNING, "refused", jsontext_add (
      describe (image, export), { "text", eventlog_text (why ? why : "") }));
}
