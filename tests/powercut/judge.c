/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What could a power cut have left of an image, and what would its clients have missed?
 *
 *   judge JOURNAL BEFORE AFTER SEED CUTS ASKED
 *
 * BEFORE and AFTER are the image before the server started and after it ended; JOURNAL
 * (journal.c) contains what happened meanwhile.  That is repeated on a simulated disk
 * (lib/simdisk.c): sectors of 512 bytes, of which each may have its durable contents or
 * any later ones, whatever others have; so may the size.  The power is cut about CUTS
 * times: before operations of the server, most often before syncs, and after what clients
 * were promised.  What each cut leaves is judged:
 *
 *   - the contents, sector by sector, by what clients were told (lib/ledger.c); those of
 *     an internal snapshot must be what they were
 *   - the metadata, by an independent checker (lib/checker.c); about ASKED times, and
 *     whenever the checker finds corruption, by qemu-img check, which then repairs leaks:
 *     nothing else may have changed.  Only what qemu-img calls corrupt is counted so.
 *
 * Prints the counts as JSON.  Puts the first image of each kind of fault into the current
 * directory, and says on stderr what is wrong with it.  The same arguments, the same
 * counts.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "powercut/journal.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/ledger.h"
#include "lib/simdisk.h"

#define SURVIVOR "survivor.qcow2"
#define SECTOR LEDGER_SECTOR

struct event {
  struct journal_entry e;
  const unsigned char *data;
  struct event *begin;          /* of an end: what has ended */
  bool failed;                  /* of a beginning: it had no effect */
  uint64_t stamp;               /* for simdisk_end or ledger_flush_end */
};

/* Faults of sectors: */
enum fault_kind {
  LOST,                         /* not what was flushed, and no request has changed it */
  SNAPSHOT,                     /* the same of the internal snapshot */
  /* A request that was not flushed, or not even acknowledged, has concerned it. */
  OLDER,                        /* what was there before it was flushed; unreadable */
  TORN,                         /* partly one, partly another of its contents */
  FOREIGN,                      /* bytes that were never written there */
  TRIMMED,                      /* the same, of a sector that was trimmed */
  FAULTS
};
static const char *const fault_names[] = {
  "lost", "snapshot", "older", "torn", "foreign", "trimmed",
};

struct judge {
  struct blob journal;
  struct event *events;
  uint64_t n;
  struct simdisk *sim;
  struct ledger *ledger;
  struct blob before, initial, snapshot;        /* an image, and contents */
  unsigned char *contents;
  struct rng rng;
  double asked;                 /* the part of the cuts that qemu-img judges */

  uint64_t cuts;
  struct { uint64_t sectors, cuts; } faults[FAULTS];
  uint64_t behind;              /* sectors, in all cuts */
  uint64_t leaks, most_leaks;   /* bytes: in all cuts, in one */
  uint64_t qemu, corrupt, corrupt_later, suspect;
};

static void
die (const char *what)
{
  fprintf (stderr, "judge: %s\n", what);
  exit (1);
}

/* --- the journal --- */

static int
by_number (const void *a, const void *b)
{
  const struct event *const *x = a, *const *y = b;

  return (*x)->e.number < (*y)->e.number ? -1 : (*x)->e.number > (*y)->e.number;
}

static bool
is_end (const struct event *ev)
{
  return ev->e.kind == JOURNAL_END || ev->e.kind == JOURNAL_CLIENT_END;
}

static void
read_journal (struct judge *j, const char *path)
{
  const unsigned char *p, *end;
  uint64_t room = 0;

  blob_load (path, &j->journal);
  p = j->journal.data;
  end = p + j->journal.len;
  while (end - p >= (ptrdiff_t) sizeof (struct journal_entry)) {
    struct event ev = { .failed = false };

    memcpy (&ev.e, p, sizeof ev.e);
    p += sizeof ev.e;
    if (ev.e.kind == JOURNAL_WRITE) {
      if (ev.e.count > (uint64_t) (end - p))
        break;
      ev.data = p;
      p += ev.e.count;
    }
    if (j->n == room) {
      room = room ? 2 * room : 1024;
      j->events = realloc (j->events, room * sizeof *j->events);
      CHECK (j->events != NULL);
    }
    j->events[j->n++] = ev;
  }
  if (p != end)
    die ("the journal is cut off");
}

/* Finds out how each operation ended. */
static void
match_ends (struct judge *j)
{
  struct event **begins = malloc ((j->n + 1) * sizeof *begins), **found, *end;
  uint64_t i, n = 0;

  CHECK (begins != NULL);
  for (i = 0; i < j->n; i++)
    if (!is_end (&j->events[i]))
      begins[n++] = &j->events[i];
  qsort (begins, n, sizeof *begins, by_number);
  for (i = 0; i < j->n; i++) {
    if (!is_end (&j->events[i]))
      continue;
    end = &j->events[i];
    found = bsearch (&end, begins, n, sizeof *begins, by_number);
    if (found == NULL)
      die ("the journal has an end without a beginning");
    end->begin = *found;
    if (end->e.result == -1)
      end->begin->failed = true;
    else if (end->begin->e.kind == JOURNAL_WRITE)
      end->begin->e.count = end->e.result;
  }
  free (begins);
}

/* --- what is left --- */

/* The image with the L1 table of its first internal snapshot in place of the active one;
 * restore_active undoes it. */
struct active { uint64_t size, offset; };

static struct active
show_snapshot (struct blob *b)
{
  const struct active a = { blob_get (b, 36, 4), blob_get (b, 40, 8) };
  const uint64_t at = blob_get (b, 64, 8);

  blob_put (b, 36, blob_get (b, at + 8, 4), 4);
  blob_put (b, 40, blob_get (b, at, 8), 8);
  return a;
}

static void
restore_active (struct blob *b, struct active a)
{
  blob_put (b, 36, a.size, 4);
  blob_put (b, 40, a.offset, 8);
}

/* The contents of the disk; what cannot be read has bytes that nobody wrote. */
static void
read_contents (struct judge *j, const struct blob *b)
{
  memset (j->contents, CHECKER_UNREADABLE, j->initial.len);
  checker_read (b, NULL, j->contents, j->initial.len);
}

/* A fault in N sectors, the first of which is SECTOR (of the disk). */
static void
count_fault (struct judge *j, enum fault_kind kind, uint64_t n, uint64_t sector,
             const struct blob *b, const char *when)
{
  char name[40];

  if (j->faults[kind].cuts++ == 0) {
    fprintf (stderr, "%s, first in cut %" PRIu64 ", %s, offset %" PRIu64 "\n",
             fault_names[kind], j->cuts, when, sector * SECTOR);
    if (kind != SNAPSHOT)
      ledger_allows (j->ledger, sector, 1, j->contents + sector * SECTOR, true);
    snprintf (name, sizeof name, "%s.qcow2", fault_names[kind]);
    blob_save (name, b);
  }
  j->faults[kind].sectors += n;
}

static bool
is_unreadable (const unsigned char *p)
{
  unsigned i;

  for (i = 0; i < SECTOR && p[i] == CHECKER_UNREADABLE; i++)
    ;
  return i == SECTOR;
}

/* FAULTS: there is none. */
static enum fault_kind
judge_sector (struct judge *j, uint64_t sector)
{
  const unsigned char *p = j->contents + sector * SECTOR;
  enum ledger_state state;
  const enum ledger_verdict v = ledger_judge (j->ledger, sector, p, &state);

  if (v == LEDGER_BEHIND)
    j->behind += state != LEDGER_TRIMMED;
  if (v == LEDGER_BEHIND || v == LEDGER_CURRENT)
    return FAULTS;
  switch (state) {
  case LEDGER_FLUSHED:
    return LOST;
  case LEDGER_TRIMMED:
    return v == LEDGER_FOREIGN && !is_unreadable (p) ? TRIMMED : FAULTS;
  default:
    return v == LEDGER_OLDER || is_unreadable (p) ? OLDER :
      v == LEDGER_TORN ? TORN : FOREIGN;
  }
}

static void
judge_contents (struct judge *j, const struct blob *b, const char *when)
{
  uint64_t sectors[FAULTS + 1] = { 0 }, first[FAULTS + 1] = { 0 }, s;
  unsigned kind;

  read_contents (j, b);
  for (s = 0; s < j->initial.len / SECTOR; s++) {
    kind = judge_sector (j, s);
    if (sectors[kind]++ == 0)
      first[kind] = s;
  }
  for (kind = 0; kind < FAULTS; kind++)
    if (sectors[kind] > 0)
      count_fault (j, kind, sectors[kind], first[kind], b, when);
}

static void
judge_snapshot (struct judge *j, const struct blob *b, const char *when)
{
  struct blob shown = blob_copy (b);
  uint64_t s, n = 0, first = 0;

  show_snapshot (&shown);
  read_contents (j, &shown);
  for (s = 0; s < j->snapshot.len / SECTOR; s++)
    if (memcmp (j->contents + s * SECTOR, j->snapshot.data + s * SECTOR, SECTOR) != 0 &&
        n++ == 0)
      first = s;
  if (n > 0)
    count_fault (j, SNAPSHOT, n, first, b, when);
  blob_free (&shown);
}

static int
qemu_check (const char *repair)
{
  struct command c = { .n = 0 };

  command_add (&c, "qemu-img");
  command_add (&c, "check");
  command_add (&c, "-q");
  if (repair) {
    command_add (&c, "-r");
    command_add (&c, "%s", repair);
  }
  command_add (&c, "-f");
  command_add (&c, "qcow2");
  command_add (&c, SURVIVOR);
  return command_run (&c);
}

/* Are metadata and contents in order after the repair?  j->contents: before it. */
static bool
repaired_well (struct judge *j)
{
  unsigned char *before = malloc (j->initial.len);
  struct blob b;
  bool ok;

  CHECK (before != NULL);
  memcpy (before, j->contents, j->initial.len);
  blob_load (SURVIVOR, &b);
  read_contents (j, &b);
  ok = qemu_check (NULL) == 0 && memcmp (before, j->contents, j->initial.len) == 0;
  blob_free (&b);
  free (before);
  return ok;
}

/* j->contents: what the disk contains. */
static void
ask_qemu (struct judge *j, const struct blob *b, const char *when)
{
  int status;

  blob_save (SURVIVOR, b);
  j->qemu++;
  status = qemu_check (NULL);
  if (status != 0 && status != 3) {
    if (j->corrupt++ == 0) {
      fprintf (stderr, "corrupt, first in cut %" PRIu64 ", %s\n", j->cuts, when);
      blob_save ("corrupt.qcow2", b);
    }
  } else if (status == 3) {
    qemu_check ("leaks");
    if (!repaired_well (j) && j->corrupt_later++ == 0) {
      fprintf (stderr, "corrupt after qemu-img check -r leaks, first in cut %" PRIu64
               ", %s\n", j->cuts, when);
      blob_save ("corrupt-later.qcow2", b);
    }
  }
}

static void
judge_metadata (struct judge *j, const struct blob *b, const char *when)
{
  struct check_result r;
  uint64_t bytes;

  checker_check (b, &r);
  bytes = (uint64_t) r.leaks << blob_get (&j->before, 20, 4);
  j->leaks += bytes;
  if (bytes > j->most_leaks)
    j->most_leaks = bytes;
  if (r.corruptions > 0 && j->suspect++ == 0)
    fprintf (stderr, "suspect, first in cut %" PRIu64 ", %s: %s\n", j->cuts, when,
             r.first);
  if (r.corruptions > 0 || (rng_next (&j->rng) >> 11) * 0x1p-53 < j->asked)
    ask_qemu (j, b, when);
}

static void
cut (struct judge *j, uint64_t at)
{
  const enum power_cut kind = simdisk_random_cut (&j->rng);
  const struct blob *left = simdisk_cut (j->sim, &j->rng, kind);
  char when[80];

  j->cuts++;
  snprintf (when, sizeof when, "before entry %" PRIu64 " of the journal (kind %d)", at,
            kind);
  if (j->snapshot.len > 0)
    judge_snapshot (j, left, when);
  judge_contents (j, left, when);
  judge_metadata (j, left, when);
}

/* --- what happened --- */

static enum storage_op
operation (const struct event *ev)
{
  switch (ev->e.kind) {
  case JOURNAL_WRITE: return STORAGE_OP_WRITE;
  case JOURNAL_ZERO: return STORAGE_OP_PUNCH;
  case JOURNAL_SYNC: return STORAGE_OP_SYNC;
  default: return STORAGE_OP_TRUNCATE;
  }
}

static void
begin (struct judge *j, struct event *ev)
{
  uint64_t offset = ev->e.offset;

  if (ev->failed)
    return;
  if (ev->e.kind == JOURNAL_GROW && simdisk_size (j->sim) > offset)
    offset = simdisk_size (j->sim);
  ev->stamp = simdisk_begin (j->sim, operation (ev), ev->data, offset, ev->e.count);
}

static void
end_request (struct judge *j, const struct event *ev)
{
  const uint64_t sector = ev->e.offset / SECTOR, n = ev->e.count / SECTOR;

  if (ev->e.kind == JOURNAL_CLIENT_FLUSH)
    ledger_flush_end (j->ledger, ev->stamp);
  else if (ev->e.kind != JOURNAL_CLIENT_TRIM)
    ledger_end (j->ledger, sector, n, ev->e.durable);
}

static void
happen (struct judge *j, struct event *ev)
{
  const uint64_t sector = ev->e.offset / SECTOR, n = ev->e.count / SECTOR;

  switch ((enum journal_kind) ev->e.kind) {
  case JOURNAL_WRITE: case JOURNAL_ZERO: case JOURNAL_RESIZE: case JOURNAL_GROW:
  case JOURNAL_SYNC:
    begin (j, ev);
    break;
  case JOURNAL_END:
    if (!ev->begin->failed)
      simdisk_end (j->sim, operation (ev->begin), ev->begin->stamp,
                   ev->begin->e.durable);
    break;
  case JOURNAL_CLIENT_WRITE:
    ledger_begin (j->ledger, sector, n, ev->e.result);
    break;
  case JOURNAL_CLIENT_ZERO:
    ledger_begin (j->ledger, sector, n, LEDGER_ZEROS);
    break;
  case JOURNAL_CLIENT_TRIM:
    ledger_trim (j->ledger, sector, n);
    break;
  case JOURNAL_CLIENT_FLUSH:
    ev->stamp = ledger_flush_begin (j->ledger);
    break;
  case JOURNAL_CLIENT_END:
    end_request (j, ev->begin);
    break;
  }
}

/* How interesting is a power cut before event AT, or (AT == n) at the end? */
static unsigned
weight (const struct judge *j, uint64_t at)
{
  const struct event *ev = &j->events[at], *last = ev - 1;

  if (at > 0 && last->e.kind == JOURNAL_CLIENT_END &&
      (last->begin->e.kind == JOURNAL_CLIENT_FLUSH || last->begin->e.durable))
    return 4;                   /* a client was just promised something */
  if (at == j->n)
    return 4;
  return ev->e.kind == JOURNAL_SYNC ? 4 : ev->e.kind < JOURNAL_END;
}

static void
replay (struct judge *j, uint64_t cuts)
{
  uint64_t all = 0, i, n;

  for (i = 0; i <= j->n; i++)
    all += weight (j, i);
  for (i = 0; i <= j->n; i++) {
    /* The expected number, and by chance one more or less. */
    n = cuts * weight (j, i);
    n = n / all + (rng_below (&j->rng, all) < n % all);
    for (; n > 0; n--)
      cut (j, i);
    if (i < j->n)
      happen (j, &j->events[i]);
  }
}

/* Does the simulated disk contain what the server has left?  Otherwise its changes were
 * not all recorded. */
static void
compare_with (struct judge *j, const char *path)
{
  const struct blob *ours = simdisk_cut (j->sim, &j->rng, CUT_ALL);
  struct blob after;
  uint64_t at = 0;

  blob_load (path, &after);
  while (at < after.len && at < ours->len && after.data[at] == ours->data[at])
    at++;
  if (at < after.len || at < ours->len) {
    fprintf (stderr, "judge: the recording is not complete: offset %" PRIu64
             " of the image differs.  (io_uring, Linux AIO, mmap and system calls that "
             "are not made through libc cannot be recorded.)\n", at);
    exit (3);
  }
  blob_free (&after);
}

static void
print_counts (const struct judge *j)
{
  unsigned k;

  printf ("{\"cuts\": %" PRIu64, j->cuts);
  for (k = 0; k < FAULTS; k++)
    printf (", \"%s\": [%" PRIu64 ", %" PRIu64 "]", fault_names[k],
            j->faults[k].sectors, j->faults[k].cuts);
  printf (", \"qemu\": %" PRIu64 ", \"corrupt\": %" PRIu64 ", \"corrupt_later\": %" PRIu64
          ", \"suspect\": %" PRIu64 ", \"behind\": %" PRIu64 ", \"leaks\": %" PRIu64
          ", \"most_leaks\": %" PRIu64 ", \"entries\": %" PRIu64 "}\n",
          j->qemu, j->corrupt, j->corrupt_later, j->suspect, j->behind, j->leaks,
          j->most_leaks, j->n);
}

/* --- main --- */

static void
read_before (struct judge *j, const char *path)
{
  struct active active;

  blob_load (path, &j->before);
  j->initial.len = blob_get (&j->before, 24, 8);
  j->initial.data = malloc (j->initial.len);
  j->contents = malloc (j->initial.len);
  CHECK (j->initial.data != NULL && j->contents != NULL);
  if (checker_read (&j->before, NULL, j->initial.data, j->initial.len) == -1)
    die ("the image cannot be read");
  if (blob_get (&j->before, 60, 4) == 0)
    return;
  j->snapshot.len = j->initial.len;
  j->snapshot.data = malloc (j->snapshot.len);
  CHECK (j->snapshot.data != NULL);
  active = show_snapshot (&j->before);
  if (checker_read (&j->before, NULL, j->snapshot.data, j->snapshot.len) == -1)
    die ("the snapshot cannot be read");
  restore_active (&j->before, active);
}

int
main (int argc, char *argv[])
{
  struct judge j = { .n = 0 };
  uint64_t cuts;

  if (argc != 7)
    die ("usage: see judge.c");
  cuts = strtoull (argv[5], NULL, 10);
  j.asked = cuts ? strtod (argv[6], NULL) / cuts : 0;
  rng_init (&j.rng, strtoull (argv[4], NULL, 10), 0);
  read_journal (&j, argv[1]);
  match_ends (&j);
  read_before (&j, argv[2]);
  j.ledger = ledger_new (&j.initial);
  j.sim = simdisk_new (argv[2], 0);
  replay (&j, cuts);
  compare_with (&j, argv[3]);
  print_counts (&j);
  simdisk_free (j.sim);
  ledger_free (j.ledger);
  blob_free (&j.journal);
  blob_free (&j.before);
  blob_free (&j.initial);
  blob_free (&j.snapshot);
  free (j.contents);
  free (j.events);
  return 0;
}
