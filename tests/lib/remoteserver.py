#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""An NBD server that misbehaves as it is told.

remoteserver.py SOCKET FILE [options]

It has a volatile cache: what was written is in FILE only after a flush (or FUA), or when
the server likes to, a few blocks at a time in any order.  If it is killed, the rest is
lost.

Faults are armed by lines on stdin, each answered by a line:

    arm N FAULT    the N-th request from now on (of all connections) meets FAULT:
                     drop      the connection is closed, nothing was done
                     done      the request is carried out, then the connection is closed
                     half      the connection is closed in the middle of the reply
                     garbage   the reply is none
                     crash     the connections are closed, and the cache is lost
                     EIO, ENOSPC, ESHUTDOWN ...     this error
    count          the number of requests since then
    forget         throws the cache away; FILE has been replaced

Requests that violate the block sizes are refused with EINVAL, and told on stderr.
"""

import argparse
import errno
import os
import random
import socket
import struct
import sys
import threading
import time

SECTOR = 512
FLAG_HAS, FLAG_FLUSH, FLAG_FUA, FLAG_ZEROES, FLAG_MULTI = 1, 4, 8, 64, 256
READ, WRITE, DISC, FLUSH, ZEROES = 0, 1, 2, 3, 6
CMD_FUA = 1
INIT_MAGIC, OPTION_MAGIC, REPLY_MAGIC = b"NBDMAGIC", b"IHAVEOPT", 0x3e889045565a9
REQUEST_MAGIC, SIMPLE_MAGIC = 0x25609513, 0x67446698
OPT_ABORT, OPT_INFO, OPT_GO = 2, 6, 7
REP_ACK, REP_INFO, REP_UNSUPPORTED = 1, 3, (1 << 31) + 1
INFO_EXPORT, INFO_BLOCK_SIZE = 0, 3
# The protocol's numbers are Linux's, except that all others are EINVAL.


class Gone(Exception):
    pass


class Server:
    def __init__(self, args):
        self.args = args
        self.lock = threading.Lock()
        self.fd = os.open(args.file, os.O_RDWR)
        self.size = os.fstat(self.fd).st_size
        self.cache = {}
        self.rng = random.Random(args.seed)
        self.count, self.at, self.fault = 0, None, None
        self.connections = set()

    # --- the disk; with the lock held ---

    def read(self, offset, count):
        data = bytearray(os.pread(self.fd, count, offset).ljust(count, b"\0"))
        first, last = offset // SECTOR, (offset + count - 1) // SECTOR
        for s in self.cache.keys() & set(range(first, last + 1)):
            at = s * SECTOR - offset
            low, high = max(at, 0), min(at + SECTOR, count)
            data[low:high] = self.cache[s][low - at:high - at]
        return data

    def write(self, offset, data):
        first = offset // SECTOR
        last = (offset + len(data) - 1) // SECTOR
        whole = self.read(first * SECTOR, (last + 1 - first) * SECTOR)
        at = offset - first * SECTOR
        whole[at:at + len(data)] = data
        for s in range(first, last + 1):
            self.cache[s] = bytes(whole[(s - first) * SECTOR:
                                        (s + 1 - first) * SECTOR])
        return range(first, last + 1)

    def store(self, sectors):
        for s in list(sectors):
            if s in self.cache:
                os.pwrite(self.fd, self.cache.pop(s), s * SECTOR)

    def execute(self, kind, flags, offset, count, data):
        if kind == FLUSH:
            self.store(self.cache)
        elif kind in (WRITE, ZEROES):
            sectors = self.write(offset, data if kind == WRITE else bytes(count))
            if flags & CMD_FUA:
                self.store(sectors)
            elif self.rng.random() < 0.2:
                self.store(self.rng.sample(sorted(self.cache), len(self.cache) // 3))
        elif kind == READ:
            return self.read(offset, count)
        return b""

    # --- connections ---

    def next_fault(self):
        self.count += 1
        if self.count != self.at:
            return None
        return self.fault

    def close_all(self):
        for c in list(self.connections):
            try:
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def is_wrong(self, kind, offset, count):
        args = self.args
        if kind not in (READ, WRITE, ZEROES):
            return kind != FLUSH
        return count == 0 or (offset | count) % args.minimum != 0 or \
            offset + count > self.size or (kind != ZEROES and count > args.maximum)

    def answer(self, conn, kind, flags, cookie, offset, count, data):
        error, reply = 0, b""
        time.sleep(self.rng.random() * self.args.delay)
        with self.lock:
            fault = self.next_fault()
            if fault == "crash":
                self.cache = {}
                self.close_all()
                raise Gone
            if fault == "drop":
                raise Gone
            if fault and fault.startswith("E"):
                error = getattr(errno, fault)
            elif self.is_wrong(kind, offset, count):
                print("request %d of %d bytes at %d is not allowed" %
                      (kind, count, offset), file=sys.stderr, flush=True)
                error = errno.EINVAL
            else:
                reply = self.execute(kind, flags, offset, count, data)
        message = struct.pack(">IIQ", SIMPLE_MAGIC, error, cookie) + reply
        if fault == "done":
            raise Gone
        if fault == "half":
            conn.sendall(message[:len(message) // 2])
            raise Gone
        conn.sendall(b"?" * 64 if fault == "garbage" else message)

    def negotiate(self, conn):
        args = self.args
        flags = FLAG_HAS | FLAG_FLUSH | FLAG_FUA | FLAG_ZEROES
        if args.multi_conn:
            flags |= FLAG_MULTI
        conn.sendall(INIT_MAGIC + OPTION_MAGIC + struct.pack(">H", 3))
        receive(conn, 4)
        while True:
            magic, option, n = struct.unpack(">8sII", receive(conn, 16))
            receive(conn, n)
            replies = [(REP_UNSUPPORTED, b"")]
            if option in (OPT_INFO, OPT_GO):
                replies = [
                    (REP_INFO, struct.pack(">HQH", INFO_EXPORT, self.size, flags)),
                    (REP_INFO, struct.pack(">HIII", INFO_BLOCK_SIZE, args.minimum,
                                           max(args.minimum, 512), args.maximum)),
                    (REP_ACK, b"")]
            elif option == OPT_ABORT:
                replies = [(REP_ACK, b"")]
            for kind, data in replies:
                conn.sendall(struct.pack(">QIII", REPLY_MAGIC, option, kind,
                                         len(data)) + data)
            if option == OPT_ABORT:
                raise Gone
            if option == OPT_GO:
                return

    def serve(self, conn):
        self.connections.add(conn)
        try:
            if len(self.connections) > self.args.answer:
                print("silent", file=sys.stderr, flush=True)
                while conn.recv(4096):
                    pass
                raise Gone
            self.negotiate(conn)
            while True:
                magic, flags, kind, cookie, offset, count = struct.unpack(
                    ">IHHQQI", receive(conn, 28))
                if kind == DISC:
                    break
                data = receive(conn, count) if kind == WRITE else b""
                self.answer(conn, kind, flags, cookie, offset, count, data)
        except (Gone, OSError):
            pass
        self.connections.discard(conn)
        try:
            conn.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        conn.close()

    def listen(self):
        s = socket.socket(socket.AF_UNIX)
        s.bind(self.args.socket + ".new")
        s.listen(16)
        os.rename(self.args.socket + ".new", self.args.socket)
        while True:
            conn = s.accept()[0]
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def obey(self, line):
        words = line.split()
        with self.lock:
            if words[0] == "arm":
                self.count, self.at, self.fault = 0, int(words[1]), words[2]
            elif words[0] == "forget":
                self.cache = {}
                os.close(self.fd)
                self.fd = os.open(self.args.file, os.O_RDWR)
            elif words[0] != "count":
                return "unknown"
            return str(self.count)


def receive(conn, n):
    data = bytearray()
    while len(data) < n:
        piece = conn.recv(n - len(data))
        if not piece:
            raise Gone
        data += piece
    return bytes(data)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("socket")
    p.add_argument("file")
    p.add_argument("--minimum", type=int, default=1)
    p.add_argument("--maximum", type=int, default=32 << 20)
    p.add_argument("--multi-conn", action="store_true")
    p.add_argument("--answer", type=int, default=1000,
                   help="the server is silent on more connections than these")
    p.add_argument("--delay", type=float, default=0.0,
                   help="each answer comes up to so many seconds later")
    p.add_argument("--seed", type=int, default=0)
    server = Server(p.parse_args())
    threading.Thread(target=server.listen, daemon=True).start()
    for line in sys.stdin:
        print(server.obey(line), flush=True)
    if not sys.stdin.isatty():
        while True:
            time.sleep(1000)


main()
