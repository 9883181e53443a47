#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Persistent bitmaps of an image: what the file contains, what changed, and a check.

bitmaps.py where IMAGE NAME
    Prints "ENTRY TABLE DATA": where the bitmap's directory entry, its table and its
    first cluster of bits are in the file (DATA is 0 if there is none).

bitmaps.py directory IMAGE
    Prints the offset of the data of the bitmaps extension in the file.

bitmaps.py change URI CHANGES [--ops N]
    Sends random requests, and appends the range that each may change, "OFFSET COUNT", to
    the file CHANGES.  The environment variable SEED replays it.

bitmaps.py judge GRANULARITY BEFORE AFTER CHANGES
    BEFORE and AFTER are the output of nbdinfo --map for the bitmap.  AFTER must be
    BEFORE and each piece of GRANULARITY bytes that CHANGES touches, and nothing else.
"""

import os
import random
import struct
import sys

BITMAPS = 0x23852875


def extension(f):
    f.seek(100)
    at, = struct.unpack(">I", f.read(4))
    while True:
        f.seek(at)
        kind, length = struct.unpack(">II", f.read(8))
        if kind == BITMAPS:
            return at + 8
        if kind == 0:
            raise SystemExit("no bitmaps")
        at += 8 + (length + 7) // 8 * 8


def where(image, wanted):
    with open(image, "rb") as f:
        f.seek(extension(f))
        n, _, _, at = struct.unpack(">IIQQ", f.read(24))
        for _ in range(n):
            f.seek(at)
            table, entries, flags, kind, gran, name_len, extra = \
                struct.unpack(">QIIBBHI", f.read(24))
            f.seek(extra, 1)
            if f.read(name_len).decode() == wanted:
                f.seek(table)
                bits = struct.unpack(">%dQ" % entries, f.read(8 * entries))
                data = [b for b in bits if b > 1] or [0]
                print(at, table, data[0])
                return
            at += (24 + extra + name_len + 7) // 8 * 8
    raise SystemExit("no bitmap " + wanted)


def change(uri, changes, ops):
    import nbd
    seed = int(os.environ.get("SEED") or random.SystemRandom().getrandbits(32))
    print("SEED=%d" % seed)
    r = random.Random(seed)
    h = nbd.NBD()
    h.connect_uri(uri)
    size = h.get_size()
    with open(changes, "a") as f:
        for _ in range(ops):
            offset = r.randrange(size)
            count = min(size - offset, r.randint(1, r.choice((1, 5000, 300000))))
            op = r.choice(("write", "write", "zero", "trim", "fast", "read"))
            if op == "trim":
                # Whole 2M, hence whole clusters of any size: others may have no effect.
                offset = offset >> 21 << 21
                count = min(size - offset, r.randint(1, 2) << 21)
                h.trim(count, offset)
            elif op == "zero":
                h.zero(count, offset, r.choice((0, nbd.CMD_FLAG_NO_HOLE)))
            elif op == "fast":
                # A refused request has changed nothing, and must not be recorded.
                try:
                    h.zero(count, offset, nbd.CMD_FLAG_FAST_ZERO)
                except nbd.Error:
                    continue
            elif op == "write":
                h.pwrite(r.randbytes(count), offset,
                         r.choice((0, 0, nbd.CMD_FLAG_FUA)))
            else:
                h.pread(count, offset)
                continue
            f.write("%d %d\n" % (offset, count))
    h.flush()
    h.shutdown()


def pieces(ranges, granularity):
    """Which pieces are touched?"""
    s = set()
    for offset, count in ranges:
        s.update(range(offset // granularity,
                       (offset + count - 1) // granularity + 1))
    return s


def read_map(name):
    with open(name) as f:
        rows = [line.split() for line in f]
    return [(int(r[0]), int(r[1])) for r in rows if r[2] == "1"]


def judge(granularity, before, after, changes):
    with open(changes) as f:
        changed = [tuple(map(int, line.split())) for line in f]
    expected = pieces(read_map(before) + changed, granularity)
    got = pieces(read_map(after), granularity)
    print("%d pieces of %d bytes, %d expected" % (len(got), granularity,
                                                  len(expected)))
    for what, s in (("missing", expected - got), ("too many", got - expected)):
        if s:
            raise SystemExit("%s: %s" % (what, sorted(s)[:20]))


def main():
    args = sys.argv[1:]
    if args[0] == "where":
        where(args[1], args[2])
    elif args[0] == "directory":
        with open(args[1], "rb") as f:
            print(extension(f))
    elif args[0] == "change":
        change(args[1], args[2], int(args[4]) if args[3:] else 200)
    elif args[0] == "judge":
        judge(int(args[1]), *args[2:])
    else:
        raise SystemExit(__doc__)


main()
