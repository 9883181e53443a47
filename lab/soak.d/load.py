# SPDX-License-Identifier: BSD-3-Clause
"""Random requests through several connections, each judged by the model of the disk; and
readers of other exports at the same time."""

import argparse
import errno
import os
import socket
import threading

import nbd

from model import MEBI, Clients, Failure, RandomRun, Request, Workload, compare

# What a request may fail with when the server ends.
ENDING = (errno.ESHUTDOWN, errno.ENOTCONN, errno.EPIPE, errno.ECONNRESET)
DEPTH = 6                       # requests in flight on each connection
PATIENCE = 180                  # seconds without any answer, on a busy machine


def hang_up(h):
    """nbdkit does not end while a client is connected.  (This libnbd has no close().)"""
    try:
        with socket.socket(fileno=os.dup(h.aio_get_fd())) as s:
            s.shutdown(socket.SHUT_RDWR)
    except (nbd.Error, OSError):
        pass                        # there was no connection any more


class Load(RandomRun):
    """Sends requests, until there were enough of them, the server was made to end, or
    the storage of the image has failed it."""

    def __init__(self, uri, connections, rng, disk, cluster, trim, requests, ending=None):
        self.args = argparse.Namespace(
            cluster=cluster, trim=trim, unit=rng.choice((1, 1, 512)),
            max_len=max(65536, min(4 * cluster, MEBI)), weights="flush=4",
            aligned_trim=False, no_fast_zero=False)
        self.clients = Clients(uri, connections)
        if self.clients.size != len(disk.now):
            raise Failure("the disk has %d bytes, expected %d" %
                          (self.clients.size, len(disk.now)))
        self.work = Workload(self.args, self.clients, rng)
        self.disk, self.model = disk, disk.now
        self.requests = requests    # counts for all
        self.counts = {}
        self.changes = {}           # of requests in flight
        # Set before the server is made to end.
        self.ending = ending or threading.Event()
        self.storage_fails = False  # what it stores the image on was killed
        self.lost = False           # and so changes fail from now on

    def begin(self, r):
        if r.op in ("pwrite", "zero", "trim"):
            data = bytes(r.data) if r.op == "pwrite" else None
            self.changes[r] = self.disk.begin(r.offset, r.offset + r.count, data)
        elif r.op == "flush":
            r.mark = self.disk.time
        self.work.reserve(r)
        self.clients.submit(r)

    def check_again(self, r, again):
        """A trim was done: what is there now?  Until this is known nobody else reads it.
        """
        holder = Request("trim", r.offset, r.count)
        self.changes[again] = self.changes.pop(r)
        self.work.release(r)
        self.work.reserve(holder)
        again.version = holder
        self.clients.submit(again)

    def forgives(self, r):
        if self.ending.is_set() and r.error in ENDING:
            return True
        if self.storage_fails and r.error == errno.EIO:
            self.lost = True
            return True
        return False

    def end(self, r):
        change = self.changes.pop(r, None)
        if r.error and self.forgives(r):
            return                  # it may have happened, or not
        if r.error and change and r.error in (errno.ENOTSUP, errno.EOPNOTSUPP):
            self.disk.cancel(change)
        again = self.retire(r)      # fails if the answer is wrong
        if again is not None:
            self.changes[r] = change
            if not (self.ending.is_set() or self.lost):
                self.check_again(r, again)
            return
        if r.op == "flush":
            self.disk.flush(r.mark)
        elif change and not r.error:
            if r.op == "pread":     # after a trim
                change.data = bytes(self.model[change.start:change.end])
            self.disk.acknowledge(change, bool(r.flags & nbd.CMD_FLAG_FUA))
        if r.version is not None:
            self.work.release(r.version)
        self.work.release(r)

    def goes_on(self):
        return not self.lost and not self.ending.is_set()

    def run(self, count, events=()):
        """Sends so many requests.  events: pairs of a number of requests, and what is to
        be done when these have been sent."""
        clients, sent, events = self.clients, 0, sorted(events, key=lambda e: e[0])
        depth = DEPTH * len(clients.handles)
        try:
            while clients.flying or (sent < count and self.goes_on()):
                while sent < count and len(clients.flying) < depth and self.goes_on():
                    r = self.work.next()
                    if r is None:
                        break
                    self.begin(r)
                    sent += 1
                    while events and sent >= events[0][0]:
                        events.pop(0)[1]()
                if clients.flying:
                    # Those that succeeded first: others may tell that the server ends.
                    done = sorted(clients.wait(PATIENCE), key=lambda r: r.error)
                    with self.requests.get_lock():
                        self.requests.value += len(done)
                    for r in done:
                        self.end(r)
        except (ConnectionError, nbd.Error):
            if not self.ending.is_set():
                raise
            # Answers that had arrived before the connection was lost.
            for r in clients.done:
                if not r.error:
                    self.end(r)
        return sent

    def flush(self):
        self.clients.handles[0].flush()
        self.disk.flush(self.disk.time)

    def close(self):
        if not self.ending.is_set():
            self.clients.shutdown()
        for h in self.clients.handles:
            hang_up(h)


class Reader(threading.Thread):
    """Reads exports again and again while others write, and compares: exports is a list
    of names and contents, or None for those that change."""

    def __init__(self, server, exports, rng, counts):
        super().__init__(daemon=True)
        self.server, self.exports = server, exports
        self.rng, self.counts = rng, counts
        self.enough = threading.Event()
        self.wire = None            # a copy of the connection's socket
        self.failure = None

    def run(self):
        try:
            while not self.enough.is_set() and self.exports:
                name, contents = self.rng.choice(self.exports)
                self.read(name, contents)
                self.counts["exports read"] = self.counts.get("exports read", 0) + 1
                self.enough.wait(0.02)
        except Exception as e:      # told by finish()
            self.failure = e

    def read(self, name, contents):
        h = nbd.NBD()
        try:
            h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
            h.connect_uri(self.server.uri(name))
            self.wire = socket.socket(fileno=os.dup(h.aio_get_fd()))
            self.compare(h, name, contents)
            h.shutdown()
        finally:
            hang_up(h)

    def compare(self, h, name, contents):
        size, holes = h.get_size(), []
        if contents is not None and size != len(contents):
            raise Failure("export %s has %d bytes, expected %d" %
                          (name, size, len(contents)))

        def extent(context, offset, entries, err):
            for length, kind in zip(entries[::2], entries[1::2]):
                holes.append((offset, length, kind))
                offset += length
            return 0

        step = 1 << self.rng.randrange(12, 21)
        for at in range(0, size, step):
            if self.enough.is_set():
                break
            n = min(step, size - at)
            found = h.pread(n, at)
            if contents is not None:
                compare("export " + name, at, found, contents[at:at + n])
                h.block_status(n, at, extent)
        for at, n, kind in holes:
            if kind & nbd.STATE_ZERO and any(contents[at:at + n]):
                raise Failure("export %s: %d+%d is said to be zero" % (name, at, n))

    def hang_up(self):
        """Now, and perhaps again: it may just be connecting."""
        self.enough.set()
        if self.wire:
            try:
                self.wire.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def finish(self, ending=False):
        self.enough.set()
        self.join()
        if self.failure and not (ending and isinstance(self.failure, nbd.Error)):
            raise self.failure


def read_export(uri):
    h = nbd.NBD()
    h.connect_uri(uri)
    size = h.get_size()
    contents = b"".join(h.pread(min(MEBI, size - at), at) for at in range(0, size, MEBI))
    h.shutdown()
    return contents


def marked(uri):
    """What an export of a bitmap shows as marked: pairs of start and end."""
    h = nbd.NBD()
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.connect_uri(uri)
    at, size, ranges = 0, h.get_size(), []

    def extent(context, offset, entries, err):
        nonlocal at
        for length, kind in zip(entries[::2], entries[1::2]):
            if not kind & nbd.STATE_HOLE:
                ranges.append((at, at + length))
            at += length
        return 0

    while at < size:
        h.block_status(size - at, at, extent)
    h.shutdown()
    return ranges
