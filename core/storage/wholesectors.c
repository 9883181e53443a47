/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where may a write to a file end if the process is killed?
 *
 * Linux copies what is written from the memory of the process into the page cache.  It
 * stops at a page of that memory that is not there (not touched yet, swapped out, being
 * moved) and, before it goes on, looks whether the process has been killed.  So a write
 * that SIGKILL interrupts can end wherever a page ends that it comes from: in the middle
 * of a sector of the file, if memory and file are not aligned in the same way.  Buffers
 * from malloc usually begin 16 bytes into a page, also those in which nbdkit passes on
 * what clients write.
 *
 * For a disk, a sector has its old or its new bytes, and guests may rely on that; we do,
 * with the header.  So if a sector of the file would come from two pages, or from two
 * buffers, the data is copied first.  For large writes this takes a tenth of their time,
 * so what nothing leads to yet (STORAGE_UNSEEN) is not copied.
 *
 * Locks: none; atomics.
 */

#include <config.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "storage/wholesectors.h"

/* Pages are at least this large, and multiples of it. */
#define PAGE UINT64_C (4096)

/* Larger writes are done in parts of this size. */
#define ROOM (256u << 10)

/* To allocate and free so much each time takes as long as the write. */
static _Atomic (char *) spare[8];
#define NR_SPARE (sizeof spare / sizeof spare[0])

void
cursor_advance (struct cursor *c, size_t n)
{
  c->offset += n;
  c->skip += n;
  while (c->niov > 0 && c->skip >= c->iov[0].iov_len) {
    c->skip -= c->iov[0].iov_len;
    c->iov++;
    c->niov--;
  }
}

size_t
wholesectors_torn (const struct cursor *from)
{
  struct cursor c = *from;
  size_t left, in_page, sum = 0;
  bool torn = false;

  for (; c.niov > 0; cursor_advance (&c, left)) {
    torn |= sum > 0 && c.offset % SECTOR_SIZE != 0;
    left = c.iov[0].iov_len - c.skip;
    /* If the first page of a buffer ends with a sector, so do the others. */
    in_page = PAGE - ((uintptr_t) c.iov[0].iov_base + c.skip) % PAGE;
    torn |= in_page < left && (c.offset + in_page) % SECTOR_SIZE != 0;
    sum += left;
  }
  return torn ? sum : 0;
}

static char *
take_room (void)
{
  char *room = NULL;

  for (unsigned i = 0; room == NULL && i < NR_SPARE; i++)
    room = atomic_exchange (&spare[i], NULL);
  return room ? room : aligned_alloc (PAGE, ROOM);
}

static void
give_room (char *room)
{
  char *none = NULL;

  for (unsigned i = 0; i < NR_SPARE; i++, none = NULL)
    if (atomic_compare_exchange_strong (&spare[i], &none, room))
      return;
  free (room);
}

/* Without memory for a large part, small ones are written. */
void
wholesectors_copy (struct wholesectors *w, const struct cursor *from, size_t n)
{
  const size_t within = from->offset % SECTOR_SIZE;
  struct cursor c = *from;
  size_t end, part;
  char *to;

  w->room = within + n > sizeof w->little ? take_room () : NULL;
  to = (w->room ? w->room : w->little) + within;
  end = min64 (n, (w->room ? ROOM : sizeof w->little) - within);
  w->iov = (struct iovec) { .iov_base = to, .iov_len = end };
  for (; end > 0; end -= part, to += part) {
    part = min64 (end, c.iov[0].iov_len - c.skip);
    memcpy (to, (char *) c.iov[0].iov_base + c.skip, part);
    cursor_advance (&c, part);
  }
}

void
wholesectors_end (struct wholesectors *w)
{
  if (w->room)
    give_room (w->room);
}
