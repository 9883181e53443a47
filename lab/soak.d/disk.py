# SPDX-License-Identifier: BSD-3-Clause
"""The byte model of a disk: what it contains now, and what a crash may leave of it."""

from model import SECTOR, Failure, compare


class Change:
    """A request that writes; in flight until done_at is set."""

    def __init__(self, start, end, data):
        self.start, self.end = start, end
        self.data = data            # None: zeros
        self.done_at = None         # when it was acknowledged
        self.durable = False        # with FUA

    def piece(self, start, end):
        if self.data is None:
            return bytes(end - start)
        return self.data[start - self.start:end - self.start]


class Disk:
    """now: the contents, where no request is in flight.  flushed: what is durable.
    changes: what may or may not be on it, in order.  Requests in flight never have a byte
    in common, so for each byte this is the order in which they happened."""

    def __init__(self, contents):
        self.now = bytearray(contents)
        self.flushed = bytearray(contents)
        self.changes = []
        self.time = 0

    def begin(self, start, end, data):
        change = Change(start, end, data)
        self.changes.append(change)
        return change

    def acknowledge(self, change, fua):
        self.time += 1
        change.done_at = self.time
        change.durable = fua

    def cancel(self, change):
        """It was refused, and nothing has happened."""
        self.changes.remove(change)

    def flush(self, time):
        """All that had been acknowledged at this time is durable."""
        left = []
        for c in self.changes:
            if c.done_at is not None and c.done_at <= time:
                self.flushed[c.start:c.end] = c.piece(c.start, c.end)
            else:
                left.append(c)
        self.changes = left

    def replace(self, contents):
        """The disk is at rest, and this is what is on it."""
        self.now[:] = contents
        self.flushed[:] = contents
        self.changes = []

    def resize(self, size):
        self.replace(bytes(self.now[:size]).ljust(size, b"\0"))

    def settle_clean(self, what, found):
        """After a clean end: each change that was acknowledged must be there."""
        self.flush(self.time)
        self.settle_crash(what, found)

    def settle_crash(self, what, found):
        """After a crash: each sector, or each part of one that was written as such, has
        what was flushed, or what was written later."""
        expected = self.flushed
        if len(found) != len(expected):
            raise Failure("%s: the disk has %d bytes, expected %d" %
                          (what, len(found), len(expected)))
        edges = {x for c in self.changes for x in (c.start, c.end)}
        for c in self.changes:
            edges.update(range(c.start + -c.start % SECTOR, c.end, SECTOR))
        edges = sorted(edges)
        for start, end in zip(edges, edges[1:]):
            over = [c for c in self.changes if c.start <= start and end <= c.end]
            if not over:
                continue
            may = [bytes(self.flushed[start:end])]
            for c in over:
                if c.durable:
                    may = []
                may.append(c.piece(start, end))
            if found[start:end] not in may:
                raise Failure("%s: at offset %d: %d bytes are none of the %d versions "
                              "that they may be: found %s, may be %s" %
                              (what, start, end - start, len(may),
                               bytes(found[start:start + 16]).hex(),
                               ", ".join(m[:16].hex() for m in may)))
            expected[start:end] = found[start:end]
        compare(what, 0, bytearray(found), expected)
        self.replace(found)
