/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is a client told about its data?
 *
 *   load URI JOURNAL SEED REQUESTS CONNECTIONS CLUSTER LONGEST PATTERN WEIGHTS
 *   load --fill FILE BYTES
 *
 * Sends requests to an NBD server and writes them into the journal, before they are sent
 * and after they are acknowledged.  The same arguments make the same requests.  Each
 * connection has one request in flight, and a part of the disk that no other connection
 * changes; these parts share clusters.  LONGEST: the longest request in bytes.
 *
 * PATTERN: random   the requests are chosen by WEIGHTS
 *          database a record is appended to a log and flushed; then pages change in
 *                   place; after every few records these are flushed too
 * WEIGHTS: how often (any scale) WRITE,ZERO,TRIM,FLUSH, and how many percent of writes
 * and zeros have FUA: five numbers with commas.
 *
 * --fill writes a file in which every sector is different, and shows its place: the first
 * contents of a disk.
 *
 * Locks: none; threads share only the journal, which needs none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <libnbd.h>

#include "util/bytes.h"
#include "powercut/journal.h"
#include "lib/ledger.h"
#include "lib/pieces.h"

#define MAX_CONNECTIONS 16
/* The contents of --fill. */
#define FIRST_CONTENTS 2
#define PAGE 4096

enum { WRITE, ZERO, TRIM, FLUSH, KINDS };

struct plan {
  const char *uri;
  int journal;
  uint64_t seed, requests, cluster, longest, size;
  bool database;
  uint64_t weights[KINDS], fua;
  struct pieces pieces;
  atomic_uint contents;         /* the last number that was given away */
};

struct connection {
  struct plan *plan;
  unsigned id;
  struct rng rng;
  struct nbd_handle *nbd;
  unsigned char *buf;
};

static void
die (const char *fmt, ...)
  __attribute__ ((format (printf, 1, 2), noreturn));

static void
die (const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  vfprintf (stderr, fmt, args);
  va_end (args);
  fputc ('\n', stderr);
  exit (1);
}

static uint64_t
number (const char *text)
{
  char *end;
  uint64_t n;

  errno = 0;
  n = strtoull (text, &end, 10);
  if (*text == 0 || *end || errno)
    die ("load: not a number: %s", text);
  return n;
}

/* --- requests --- */

/* Contents whose numbers are no multiples of 4: the ledger recognizes them anywhere. */
static uint32_t
new_contents (struct plan *p)
{
  uint32_t c;

  do
    c = ++p->contents;
  while (c % 4 == 0);
  return c;
}

static void
request (struct connection *c, int kind, uint64_t offset, uint64_t count, bool fua)
{
  static const enum journal_kind kinds[] = {
    JOURNAL_CLIENT_WRITE, JOURNAL_CLIENT_ZERO, JOURNAL_CLIENT_TRIM, JOURNAL_CLIENT_FLUSH,
  };
  struct journal_entry e = {
    .kind = kinds[kind], .durable = fua, .number = journal_number (), .offset = offset,
    .count = count,
  };
  const uint32_t flags = fua ? LIBNBD_CMD_FLAG_FUA : 0;
  int r;

  if (kind == WRITE) {
    e.result = new_contents (c->plan);
    ledger_fill (e.result, offset / LEDGER_SECTOR, count / LEDGER_SECTOR, c->buf);
  }
  journal_append (c->plan->journal, &e, NULL);
  switch (kind) {
  case WRITE: r = nbd_pwrite (c->nbd, c->buf, count, offset, flags); break;
  case ZERO: r = nbd_zero (c->nbd, count, offset, flags); break;
  case TRIM: r = nbd_trim (c->nbd, count, offset, 0); break;
  default: r = nbd_flush (c->nbd, 0);
  }
  if (r == -1)
    die ("load: the server failed: %s", nbd_get_error ());
  e = (struct journal_entry) { .kind = JOURNAL_CLIENT_END, .number = e.number };
  journal_append (c->plan->journal, &e, NULL);
}

static void
random_request (struct connection *c)
{
  const struct plan *p = c->plan;
  uint64_t all = 0, pick, offset = 0, count = 0;
  int kind;

  for (kind = 0; kind < KINDS; kind++)
    all += p->weights[kind];
  pick = rng_below (&c->rng, all);
  for (kind = 0; pick >= p->weights[kind]; kind++)
    pick -= p->weights[kind];
  if (kind != FLUSH)
    piece_part (pieces_pick (&p->pieces, &c->rng, c->id), &c->rng, LEDGER_SECTOR,
                p->cluster, p->longest, &offset, &count);
  request (c, kind, offset, count, (kind == WRITE || kind == ZERO) &&
           rng_below (&c->rng, 100) < p->fua);
}

/* The first eighth of the disk is the log. */
static void
transaction (struct connection *c, uint64_t *log_end)
{
  struct plan *p = c->plan;
  const uint64_t log = p->size / 8 / PAGE * PAGE, pages = (p->size - log) / PAGE;
  const uint64_t len = LEDGER_SECTOR * (1 + rng_below (&c->rng, 16));
  unsigned n = 1 + rng_below (&c->rng, 4);

  if (*log_end + len > log)
    *log_end = 0;
  request (c, WRITE, *log_end, len, false);
  *log_end += len;
  request (c, FLUSH, 0, 0, false);
  for (; n > 0; n--)
    request (c, WRITE, log + rng_below (&c->rng, pages) * PAGE, PAGE, false);
  if (rng_below (&c->rng, 6) == 0)
    request (c, FLUSH, 0, 0, false);
}

static void *
work (void *opaque)
{
  struct connection *c = opaque;
  uint64_t i, log_end = 0;

  for (i = 0; i < c->plan->requests; i++)
    if (c->plan->database)
      transaction (c, &log_end);
    else
      random_request (c);
  return NULL;
}

/* --- main --- */

static void
fill (const char *name, uint64_t size)
{
  unsigned char buf[LEDGER_SECTOR];
  FILE *f = fopen (name, "w");
  uint64_t sector;

  if (f == NULL)
    die ("load: %s: %s", name, strerror (errno));
  for (sector = 0; sector < size / LEDGER_SECTOR; sector++) {
    ledger_fill (FIRST_CONTENTS, sector, 1, buf);
    if (fwrite (buf, sizeof buf, 1, f) != 1)
      die ("load: %s: %s", name, strerror (errno));
  }
  if (fclose (f) == EOF)
    die ("load: %s: %s", name, strerror (errno));
}

static void
open_connection (struct connection *c, struct plan *p, unsigned id)
{
  *c = (struct connection) { .plan = p, .id = id, .buf = malloc (p->longest + PAGE * 2) };
  CHECK (c->buf != NULL);
  rng_init (&c->rng, p->seed, id);
  c->nbd = nbd_create ();
  if (c->nbd == NULL || nbd_connect_uri (c->nbd, p->uri) == -1)
    die ("load: cannot connect: %s", nbd_get_error ());
  p->size = nbd_get_size (c->nbd);
}

static void
check_abilities (const struct plan *p, const struct connection *c, unsigned n)
{
  if (nbd_is_read_only (c->nbd) == 1)
    die ("load: the server is read-only");
  if ((p->weights[FLUSH] > 0 && nbd_can_flush (c->nbd) != 1) ||
      (p->weights[TRIM] > 0 && nbd_can_trim (c->nbd) != 1) ||
      (p->weights[ZERO] > 0 && nbd_can_zero (c->nbd) != 1) ||
      (p->fua > 0 && nbd_can_fua (c->nbd) != 1))
    die ("load: the server cannot do all requests of this workload");
  /* Otherwise a flush covers only its own connection. */
  if (n > 1 && nbd_can_multi_conn (c->nbd) != 1)
    die ("load: the server does not announce that several connections are safe");
}

int
main (int argc, char *argv[])
{
  static struct connection connections[MAX_CONNECTIONS];
  struct plan p = { .contents = FIRST_CONTENTS };
  struct rng rng;
  unsigned n, i;

  if (argc == 4 && strcmp (argv[1], "--fill") == 0) {
    fill (argv[2], number (argv[3]));
    return 0;
  }
  if (argc != 10 ||
      sscanf (argv[9], "%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64,
              &p.weights[WRITE], &p.weights[ZERO], &p.weights[TRIM], &p.weights[FLUSH],
              &p.fua) != 5)
    die ("usage: see load.c");
  p.uri = argv[1];
  p.journal = journal_open (argv[2]);
  if (p.journal == -1)
    die ("load: %s: %s", argv[2], strerror (errno));
  p.seed = number (argv[3]);
  p.requests = number (argv[4]);
  n = number (argv[5]);
  p.cluster = number (argv[6]);
  p.longest = number (argv[7]);
  p.database = strcmp (argv[8], "database") == 0;
  CHECK (n >= 1 && n <= MAX_CONNECTIONS);

  for (i = 0; i < n; i++)
    open_connection (&connections[i], &p, i);
  check_abilities (&p, &connections[0], n);
  rng_init (&rng, p.seed, MAX_CONNECTIONS);
  pieces_make (&p.pieces, &rng, p.size, p.cluster, LEDGER_SECTOR, n, false);
  run_threads (work, connections, sizeof connections[0], n);
  for (i = 0; i < n; i++) {
    nbd_shutdown (connections[i].nbd, 0);
    nbd_close (connections[i].nbd);
    free (connections[i].buf);
  }
  pieces_free (&p.pieces);
  return 0;
}
