#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Random requests over NBD, compared with a model in memory.

model.py random URI MODEL [options]
    Sends random requests through several connections, many in flight at once.
    Requests in flight never have a byte in common (except reads), so the expected
    contents of the disk are known at any time, but they are chosen to touch and to share
    clusters.  The model starts as the file MODEL if that exists, otherwise as zeros; at
    the end the whole disk is read and compared, and the model is written to MODEL.
    --seconds N: so long, but in the short suite a third of that.

model.py crash URI STATE --pid PID [--signal KILL|TERM] [options]
    The same with whole sectors, until the server is killed at a random moment.  STATE
    receives the contents that each sector may have after that: the last flushed version
    or any later one.

model.py judge STATE RAW [--clean]
    Does the file RAW (the contents of the disk after the crash) agree with STATE?
    --clean: the server ended cleanly, so the last acknowledged version is required.
    STATE is updated, so that another round can follow.

model.py verify URI MODEL
    Does the disk read as the file MODEL?

model.py hold URI READY
    Connects, creates the file READY, and waits to be killed.

The seed is printed; the environment variable SEED replays it (but not the timing of a
concurrent run).
"""

import argparse
import errno
import math
import os
import pickle
import random
import select
import signal
import sys
import time

import nbd

SECTOR = 512
MEBI = 1 << 20
TIME = 1 if os.environ.get("QCOW2_TEST_LONG") else 1 / 3


class Failure(Exception):
    pass


class Request:
    """One request; its bytes are reserved until it is retired."""

    __slots__ = ("op", "offset", "count", "flags", "conn", "buf", "data",
                 "extents", "error", "version", "reserved", "mark")

    def __init__(self, op, offset=0, count=0, flags=0, data=None):
        self.op, self.offset, self.count, self.flags = op, offset, count, flags
        self.data = data
        self.buf = self.extents = self.version = self.mark = None
        self.error = 0
        self.reserved = False

    def __str__(self):
        s = "%s offset=%d count=%d" % (self.op, self.offset, self.count)
        for name in ("FUA", "NO_HOLE", "FAST_ZERO", "REQ_ONE"):
            if self.flags & getattr(nbd, "CMD_FLAG_" + name):
                s += " " + name.lower()
        return s


class Clients:
    """Several connections to one export, and their requests in flight."""

    def __init__(self, uri, n):
        self.handles = []
        self.done = []
        self.flying = set()
        for _ in range(n):
            h = nbd.NBD()
            h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
            h.connect_uri(uri)
            self.handles.append(h)
        h = self.handles[0]
        self.size = h.get_size()
        self.can = {
            "pread": True,
            "extents": h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION),
            "cache": h.can_cache(),
            "flush": h.can_flush(),
            "pwrite": not h.is_read_only(),
            "zero": not h.is_read_only() and h.can_zero(),
            "trim": not h.is_read_only() and h.can_trim(),
            "fua": not h.is_read_only() and h.can_fua(),
            "fast": not h.is_read_only() and h.can_fast_zero(),
        }
        self.load = [0] * n

    def submit(self, r):
        r.conn = min(range(len(self.load)), key=lambda i: self.load[i])
        h = self.handles[r.conn]

        # libnbd calls this with its lock held: only record the result.
        def completed(err):
            r.error = err.value
            self.done.append(r)
            return 1

        if r.op == "pread":
            # (libnbd 1.14 never frees a nbd.Buffer.)
            r.buf = bytearray(r.count)
            h.aio_pread(r.buf, r.offset, completed)
        elif r.op == "pwrite":
            r.buf = bytes(r.data)
            h.aio_pwrite(r.buf, r.offset, completed, flags=r.flags)
        elif r.op == "zero":
            h.aio_zero(r.count, r.offset, completed, flags=r.flags)
        elif r.op == "trim":
            h.aio_trim(r.count, r.offset, completed, flags=r.flags)
        elif r.op == "flush":
            h.aio_flush(completed)
        elif r.op == "cache":
            h.aio_cache(r.count, r.offset, completed)
        elif r.op == "extents":
            r.extents = []

            def extent(context, offset, entries, err):
                r.extents += entries
                return 0

            h.aio_block_status(r.count, r.offset, extent, completed,
                               flags=r.flags)
        else:
            raise ValueError(r.op)
        self.load[r.conn] += 1
        self.flying.add(r)

    def wait(self, timeout=math.inf):
        """Waits until requests complete, and returns them."""
        give_up = time.monotonic() + timeout
        while not self.done:
            poll = select.poll()
            by_fd = {}
            for h in self.handles:
                if h.aio_is_closed() or h.aio_is_dead():
                    raise ConnectionError("the server closed a connection")
                d = h.aio_get_direction()
                events = 0
                if d & nbd.AIO_DIRECTION_READ:
                    events |= select.POLLIN
                if d & nbd.AIO_DIRECTION_WRITE:
                    events |= select.POLLOUT
                fd = h.aio_get_fd()
                by_fd[fd] = h
                poll.register(fd, events)
            ready = poll.poll(1000)
            if not ready and time.monotonic() > give_up:
                raise Failure("no answer for %d seconds to: %s" %
                              (timeout, "; ".join(map(str, self.flying))))
            for fd, events in ready:
                h = by_fd[fd]
                d = h.aio_get_direction()
                try:
                    if d & nbd.AIO_DIRECTION_READ and \
                       events & (select.POLLIN | select.POLLHUP):
                        h.aio_notify_read()
                    elif d & nbd.AIO_DIRECTION_WRITE and \
                            events & select.POLLOUT:
                        h.aio_notify_write()
                    elif events & (select.POLLERR | select.POLLHUP |
                                   select.POLLNVAL):
                        raise ConnectionError("a connection broke")
                except nbd.Error as e:
                    raise ConnectionError(str(e)) from e
        done, self.done = self.done, []
        for r in done:
            self.load[r.conn] -= 1
            self.flying.discard(r)
        return done

    def pread_all(self):
        h = self.handles[0]
        for offset in range(0, self.size, MEBI):
            yield offset, h.pread(min(MEBI, self.size - offset), offset)

    def shutdown(self):
        for h in self.handles:
            try:
                h.shutdown()
            except nbd.Error:
                pass


class Workload:
    """Chooses requests that interfere with each other."""

    def __init__(self, args, clients, rng):
        self.args, self.clients, self.rng = args, clients, rng
        self.size = clients.size
        self.unit = args.unit
        self.reserved = []
        self.pool = rng.randbytes(4 * MEBI)
        weights = {"pread": 24, "pwrite": 36, "zero": 12, "trim": 10,
                   "flush": 3, "extents": 8, "cache": 3}
        for item in filter(None, args.weights.split(",")):
            name, value = item.split("=")
            weights[name] = int(value)
        self.ops = [op for op in weights if weights[op] and clients.can[op]]
        self.weights = [weights[op] for op in self.ops]
        # The part of the disk that most requests are about: small, so that
        # requests meet.  It moves from time to time.
        self.hot = 0
        self.hot_left = 0

    def is_free(self, start, end, writes):
        for r in self.reserved:
            if r.offset < end and start < r.offset + r.count and \
               (writes or r.op in ("pwrite", "zero", "trim")):
                return False
        return True

    def choose_range(self, largest):
        rng, cluster = self.rng, self.args.cluster
        count = min(self.size, largest, rng.choice((
            rng.randint(1, 600), rng.randint(1, 4096), 4096, cluster,
            rng.randint(1, cluster), rng.randint(1, 4 * cluster),
            rng.randint(1, largest))))
        how = rng.random()
        if how < 0.45 and self.reserved:
            # Next to a request in flight, or at least in the same clusters.
            r = rng.choice(self.reserved)
            if rng.random() < 0.5:
                offset = r.offset + r.count + rng.choice((0, 0, self.unit))
            else:
                offset = r.offset - count - rng.choice((0, 0, self.unit))
        elif how < 0.85:
            if self.hot_left == 0:
                self.hot = rng.randrange(self.size)
                self.hot_left = rng.randint(50, 500)
            self.hot_left -= 1
            offset = self.hot + rng.randrange(8 * cluster)
            if rng.random() < 0.4:
                offset -= offset % cluster
        elif how < 0.9:
            offset = self.size - count
        else:
            offset = rng.randrange(self.size)
        offset -= offset % self.unit
        count += -count % self.unit
        offset = max(0, min(offset, self.size - 1))
        offset -= offset % self.unit
        return offset, min(count, self.size - offset)

    def next(self):
        """A request that can be sent now, or None if none was found."""
        rng = self.rng
        op = rng.choices(self.ops, self.weights)[0]
        if op == "flush":
            return Request(op)
        largest = self.args.max_len
        if op in ("zero", "trim", "extents"):
            largest *= 4
        for _ in range(10):
            offset, count = self.choose_range(largest)
            if op == "trim" and self.args.aligned_trim:
                end = offset + count
                offset += -offset % self.args.cluster
                if end < self.size:
                    end -= end % self.args.cluster
                count = end - offset
                if count <= 0:
                    continue
            writes = op in ("pwrite", "zero", "trim")
            if self.is_free(offset, offset + count, writes):
                break
        else:
            return None
        r = Request(op, offset, count)
        if writes and self.clients.can["fua"] and rng.random() < 0.08:
            r.flags |= nbd.CMD_FLAG_FUA
        if op == "zero":
            if rng.random() < 0.4:
                r.flags |= nbd.CMD_FLAG_NO_HOLE
            if self.clients.can["fast"] and not self.args.no_fast_zero and \
               rng.random() < 0.3:
                r.flags |= nbd.CMD_FLAG_FAST_ZERO
        if op == "extents" and rng.random() < 0.3:
            r.flags |= nbd.CMD_FLAG_REQ_ONE
        if op == "pwrite":
            # Mostly bytes that are unique on the disk, sometimes zeros.
            if rng.random() < 0.05:
                r.data = bytes(count)
            else:
                start = rng.randrange(len(self.pool) - 1)
                r.data = self.pool[start:start + count]
                while len(r.data) < count:
                    r.data += self.pool[:count - len(r.data)]
        return r

    def reserve(self, r):
        if r.count:
            r.reserved = True
            self.reserved.append(r)

    def release(self, r):
        if r.reserved:
            r.reserved = False
            self.reserved.remove(r)


def first_difference(a, b):
    for i in range(0, len(a), 4096):
        if a[i:i + 4096] != b[i:i + 4096]:
            for j in range(i, min(i + 4096, len(a), len(b))):
                if a[j] != b[j]:
                    return j
    return min(len(a), len(b))


def compare(what, offset, found, expected):
    if found != expected:
        i = first_difference(found, expected)
        raise Failure("%s: at offset %d found %s, expected %s" %
                      (what, offset + i, bytes(found[i:i + 16]).hex(),
                       bytes(expected[i:i + 16]).hex()))


def old_or_zero(what, offset, found, old):
    """Each byte is the old one or 0."""
    for i in range(0, len(found), SECTOR):
        f, o = found[i:i + SECTOR], old[i:i + SECTOR]
        if f == o or not any(f):
            continue
        for j, (x, y) in enumerate(zip(f, o)):
            if x != 0 and x != y:
                raise Failure("%s: at offset %d found %02x, expected %02x "
                              "or 00" % (what, offset + i + j, x, y))


class RandomRun:
    """The byte model."""

    def __init__(self, args, rng):
        self.args = args
        self.clients = Clients(args.uri, args.connections)
        size = self.clients.size
        self.work = Workload(args, self.clients, rng)
        if os.path.exists(args.model):
            with open(args.model, "rb") as f:
                self.model = bytearray(f.read())
            if len(self.model) != size:
                raise Failure("the disk has %d bytes, the model %d" %
                              (size, len(self.model)))
        else:
            self.model = bytearray(size)
        self.counts = {}

    def expect_after_trim(self, r):
        """The contents that a trim must leave, and the part in which both the old
        bytes and zeros are correct."""
        start, end = r.offset, r.offset + r.count
        new = bytearray(self.model[start:end])
        cluster = self.args.cluster
        if self.args.trim == "keep":
            return new, (end, end)
        if self.args.trim == "any":
            return new, (start, end)
        first = start + -start % cluster
        last = end - end % cluster
        if first < last:
            new[first - start:last - start] = bytes(last - first)
        # A cluster that the end of the disk cuts off may count as whole or not.
        if end == self.clients.size and end % cluster and first <= last:
            return new, (last, end)
        return new, (end, end)

    def retire(self, r):
        """Checks the outcome; returns a request that must follow, or None."""
        start, end = r.offset, r.offset + r.count
        self.counts[r.op] = self.counts.get(r.op, 0) + 1
        if r.error:
            if r.op == "zero" and r.flags & nbd.CMD_FLAG_FAST_ZERO and \
               r.error in (errno.ENOTSUP, errno.EOPNOTSUPP):
                self.counts["slow"] = self.counts.get("slow", 0) + 1
                return None
            raise Failure("%s: %s" % (r, os.strerror(r.error)))
        if r.op == "pread":
            found = r.buf
            if r.mark is None:
                compare(str(r), start, found, self.model[start:end])
            else:
                expected, (a, b) = r.mark
                old_or_zero("after trim, " + str(r), a,
                            found[a - start:b - start],
                            expected[a - start:b - start])
                expected[a - start:b - start] = found[a - start:b - start]
                compare("after trim, " + str(r), start, found, expected)
                self.model[start:end] = found
        elif r.op == "pwrite":
            self.model[start:end] = r.data
        elif r.op == "zero":
            self.model[start:end] = bytes(r.count)
        elif r.op == "trim":
            # The bytes stay reserved while they are read back.
            again = Request("pread", start, r.count)
            again.mark = self.expect_after_trim(r)
            return again
        elif r.op == "extents":
            self.check_extents(r)
        return None

    def check_extents(self, r):
        if not r.extents:
            raise Failure("%s: no extents" % r)
        at = r.offset
        for length, kind in zip(r.extents[::2], r.extents[1::2]):
            if length == 0:
                raise Failure("%s: empty extent" % r)
            stop = min(at + length, r.offset + r.count)
            if kind & nbd.STATE_ZERO and any(self.model[at:stop]):
                raise Failure("%s: extent at %d+%d is said to be zero" %
                              (r, at, length))
            at += length
        if at > self.clients.size:
            raise Failure("%s: extents beyond the end of the disk" % r)
        if r.flags & nbd.CMD_FLAG_REQ_ONE and len(r.extents) != 2:
            raise Failure("%s: more than one extent" % r)

    def run(self):
        args, work, clients = self.args, self.work, self.clients
        stop_at = time.monotonic() + args.seconds * TIME
        sent = 0
        depth = args.depth * args.connections
        while True:
            go_on = (sent < args.ops) if args.ops else \
                time.monotonic() < stop_at
            while go_on and len(clients.flying) < depth:
                r = work.next()
                if r is None:
                    break
                work.reserve(r)
                clients.submit(r)
                sent += 1
            if not clients.flying:
                if not go_on:
                    break
                continue
            for r in clients.wait():
                again = self.retire(r)
                if again is not None:
                    again.reserved = False
                    # Takes over the reservation as a trim, so that reads avoid it.
                    work.release(r)
                    holder = Request("trim", again.offset, again.count)
                    work.reserve(holder)
                    again.version = holder
                    clients.submit(again)
                    continue
                if r.version is not None:
                    work.release(r.version)
                work.release(r)
        if clients.can["flush"]:
            clients.handles[0].flush()
        for offset, found in clients.pread_all():
            compare("at the end", offset, bytearray(found),
                    self.model[offset:offset + len(found)])
        with open(args.model, "wb") as f:
            f.write(self.model)
        clients.shutdown()
        return "ok: %d requests (%s)" % (sent, " ".join(
            "%s %d" % i for i in sorted(self.counts.items())))


# --- crashes: what may each sector contain? ---

INITIAL = -1    # version: the initial contents of the disk (zeros or the base)


def pattern(version, sector):
    return (version.to_bytes(8, "big") + sector.to_bytes(8, "big")) * 32


class CrashState:
    """For each sector, the versions that it may contain, oldest first.  Requests for one
    sector never overlap in time, so they have an order."""

    def __init__(self, sectors):
        self.history = [[INITIAL]] * sectors
        self.zeros = set()          # versions that are zeros
        self.done_at = {}           # version -> tick of its completion
        self.next_version = 1
        self.tick = 0

    def begin(self, first, last, is_zero):
        v = self.next_version
        self.next_version += 1
        if is_zero:
            self.zeros.add(v)
        for s in range(first, last):
            self.history[s] = self.history[s] + [v]
        return v

    def drop_before(self, s, version):
        h = self.history[s]
        if version in h:
            self.history[s] = h[h.index(version):]

    def flushed(self, tick):
        """Everything that had completed at this tick is durable."""
        for s, h in enumerate(self.history):
            if len(h) > 1:
                for v in reversed(h):
                    if v == INITIAL or self.done_at.get(v, tick + 1) <= tick:
                        self.drop_before(s, v)
                        break

    def save(self, name):
        with open(name, "wb") as f:
            pickle.dump(self, f)


class CrashRun:
    def __init__(self, args, rng):
        self.args, self.rng, self.killed = args, rng, False
        self.clients = Clients(args.uri, args.connections)
        self.work = Workload(args, self.clients, rng)
        if os.path.exists(args.state):
            with open(args.state, "rb") as f:
                self.state = pickle.load(f)
        else:
            self.state = CrashState(self.clients.size // SECTOR)

    def prepare(self, r):
        state = self.state
        first, last = r.offset // SECTOR, (r.offset + r.count) // SECTOR
        if r.op == "pwrite":
            r.version = state.begin(first, last, False)
            r.data = b"".join(pattern(r.version, s)
                              for s in range(first, last))
        elif r.op in ("zero", "trim"):
            r.version = state.begin(first, last, True)
        elif r.op == "flush":
            r.mark = state.tick

    def retire(self, r):
        state = self.state
        if r.error:
            if r.op == "zero" and r.flags & nbd.CMD_FLAG_FAST_ZERO and \
               r.error in (errno.ENOTSUP, errno.EOPNOTSUPP):
                # It has never happened.
                for s in range(r.offset // SECTOR,
                               (r.offset + r.count) // SECTOR):
                    state.history[s] = [v for v in state.history[s]
                                        if v != r.version]
                return
            # The server has ended, or refuses requests because it is about to end.
            if r.error in (errno.ESHUTDOWN, errno.ENOTCONN, errno.EPIPE,
                           errno.ECONNRESET) or \
               (self.args.far and self.killed and r.error == errno.EIO):
                raise ConnectionError("%s: %s" % (r, os.strerror(r.error)))
            raise Failure("%s: %s" % (r, os.strerror(r.error)))
        state.tick += 1
        if r.op == "flush":
            state.flushed(r.mark)
        elif r.version is not None:
            state.done_at[r.version] = state.tick
            if r.flags & nbd.CMD_FLAG_FUA:
                for s in range(r.offset // SECTOR,
                               (r.offset + r.count) // SECTOR):
                    state.drop_before(s, r.version)

    def run(self):
        args, work, clients = self.args, self.work, self.clients
        sent = 0
        kill_after = self.rng.randint(1, args.ops or 2000)
        # A server that needs nothing of what was killed would never end.
        most = kill_after + 300 if args.far else sys.maxsize
        depth = args.depth * args.connections
        try:
            while sent < most or clients.flying:
                while len(clients.flying) < depth and sent < most:
                    r = work.next()
                    if r is None:
                        break
                    self.prepare(r)
                    work.reserve(r)
                    clients.submit(r)
                    sent += 1
                    if sent >= kill_after and not self.killed:
                        for pid in args.pid:
                            os.kill(pid, getattr(signal, "SIG" + args.signal))
                        self.killed = True
                if not clients.flying:
                    continue
                # Successful requests first.
                for r in sorted(clients.wait(), key=lambda r: r.error):
                    self.retire(r)
                    work.release(r)
        except (ConnectionError, nbd.Error):
            if not self.killed:
                raise
        # Replies that libnbd had read before the connection was lost.
        for r in clients.done:
            if not r.error:
                self.retire(r)
        self.state.save(args.state)
        return "killed after %d requests, %d in flight" % (
            sent, len(clients.flying))


def judge(args):
    with open(args.state, "rb") as f:
        state = pickle.load(f)
    if args.clean:
        state.flushed(state.tick)
    base = None
    if args.base:
        with open(args.base, "rb") as f:
            base = f.read()
    nothing = bytes(SECTOR)
    bad = 0
    with open(args.raw, "rb") as f:
        for s, h in enumerate(state.history):
            found = f.read(SECTOR)
            initial = nothing
            if base is not None:
                initial = base[s * SECTOR:(s + 1) * SECTOR].ljust(SECTOR, b"\0")
            held = None
            for v in reversed(h):
                if v == INITIAL:
                    expected = initial
                elif v in state.zeros:
                    expected = nothing
                else:
                    expected = pattern(v, s)
                if found == expected:
                    held = v
                    break
            if held is None:
                bad += 1
                if bad < 10:
                    print("sector %d (offset %d): holds %s, may hold %s" %
                          (s, s * SECTOR, describe(found),
                           ", ".join(describe_version(state, v) for v in h)))
                held = h[-1]
            state.history[s] = [held]
    if bad:
        raise Failure("%d sectors are wrong" % bad)
    state.save(args.state)
    return "ok: %d sectors" % len(state.history)


def describe(sector):
    if not any(sector):
        return "zeros"
    version = int.from_bytes(sector[:8], "big")
    where = int.from_bytes(sector[8:16], "big")
    if sector == pattern(version, where):
        return "version %d of sector %d" % (version, where)
    return "unknown bytes " + sector[:16].hex()


def describe_version(state, v):
    if v == INITIAL:
        return "what was there at first"
    text = "version %d" % v
    if v in state.zeros:
        text += " (zeros)"
    if v not in state.done_at:
        text += " (not acknowledged)"
    return text


def verify(args):
    clients = Clients(args.uri, 1)
    with open(args.model, "rb") as f:
        model = f.read()
    if len(model) != clients.size:
        raise Failure("the disk has %d bytes, the model %d" %
                      (clients.size, len(model)))
    for offset, found in clients.pread_all():
        compare("verify", offset, bytearray(found),
                bytearray(model[offset:offset + len(found)]))
    clients.shutdown()
    return "ok: %d bytes" % clients.size


def hold(args):
    h = nbd.NBD()
    h.connect_uri(args.uri)
    with open(args.ready, "w"):
        pass
    while True:
        signal.pause()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sub = p.add_subparsers(dest="command", required=True)

    load = argparse.ArgumentParser(add_help=False)
    load.add_argument("--connections", type=int, default=3)
    load.add_argument("--depth", type=int, default=6,
                      help="requests in flight per connection")
    load.add_argument("--cluster", type=lambda s: size(s), default=65536)
    load.add_argument("--max-len", type=lambda s: size(s), default=None)
    load.add_argument("--unit", type=int, default=None)
    load.add_argument("--ops", type=int, default=0)
    load.add_argument("--no-fast-zero", action="store_true")
    load.add_argument("--weights", default="",
                      help="such as pwrite=50,trim=0")

    c = sub.add_parser("random", parents=[load])
    c.add_argument("uri")
    c.add_argument("model")
    c.add_argument("--seconds", type=float, default=2.0)
    c.add_argument("--trim", choices=("zero", "any", "keep"), default="zero")

    c = sub.add_parser("crash", parents=[load])
    c.add_argument("uri")
    c.add_argument("state")
    c.add_argument("--pid", type=int, required=True, action="append",
                   help="can be given several times")
    c.add_argument("--signal", choices=("KILL", "TERM"), default="KILL")
    c.add_argument("--far", action="store_true",
                   help="the server stores the image on what is killed: then "
                   "requests may fail with EIO")

    c = sub.add_parser("judge")
    c.add_argument("state")
    c.add_argument("raw")
    c.add_argument("--base", help="what the disk held at first")
    c.add_argument("--clean", action="store_true")

    c = sub.add_parser("verify")
    c.add_argument("uri")
    c.add_argument("model")

    c = sub.add_parser("hold")
    c.add_argument("uri")
    c.add_argument("ready")

    args = p.parse_args()
    if args.command in ("random", "crash"):
        seed = int(os.environ.get("SEED") or
                   int.from_bytes(os.urandom(4), "big"))
        print("SEED=%d" % seed, flush=True)
        rng = random.Random(seed)
        if args.max_len is None:
            args.max_len = max(65536, min(4 * args.cluster, MEBI))
        crash = args.command == "crash"
        if args.unit is None:
            args.unit = SECTOR if crash else 1
        args.aligned_trim = crash
    try:
        if args.command == "random":
            print(RandomRun(args, rng).run())
        elif args.command == "crash":
            print(CrashRun(args, rng).run())
        elif args.command == "judge":
            print(judge(args))
        elif args.command == "verify":
            print(verify(args))
        elif args.command == "hold":
            hold(args)
    except (Failure, ConnectionError, nbd.Error) as e:
        sys.exit("model.py %s: %s" % (args.command, e))


def size(text):
    """4k, 64K, 2M or a number of bytes."""
    shift = {"k": 10, "m": 20, "g": 30}.get(text[-1].lower())
    return int(text[:-1]) << shift if shift else int(text)


if __name__ == "__main__":
    main()
