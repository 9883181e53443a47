#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Overwrites fields of an image, to test how damage is handled.

patch.py FILE [OFFSET FORMAT VALUE]...

OFFSET is a number, or a named place and a number added to it ("l2+8"):
  l1       the active L1 table
  l2       the first L2 table in use (l2:N: the one that L1 entry N names)
  data     the cluster that the first L2 entry in use names
  rt, rb   the refcount table, its first block
  end      the end of the file
FORMAT is B, H, I or Q (big-endian, 1 to 8 bytes), or s (VALUE in hex).
VALUE is a number; a named place as above; or +N, -N, |N, ^N: changes what is there.
With no triple, prints the places.
"""

import os
import re
import struct
import sys

OFFSET_MASK = 0x00fffffffffffe00


def places(f):
    f.seek(0)
    h = f.read(112).ljust(112, b"\0")
    cluster_bits, = struct.unpack_from(">I", h, 20)
    l1_size, l1 = struct.unpack_from(">IQ", h, 36)
    rt, = struct.unpack_from(">Q", h, 48)
    p = {"l1": l1, "rt": rt, "end": os.fstat(f.fileno()).st_size}
    if not 9 <= cluster_bits <= 21 or l1_size > 1 << 22:
        return p

    def table(offset, n):
        f.seek(offset)
        b = f.read(n * 8)
        b = b[:len(b) // 8 * 8]
        return struct.unpack(">%dQ" % (len(b) // 8), b)

    rb = table(rt, 1)
    if rb:
        p["rb"] = rb[0] & ~0x1ff
    for i, e in enumerate(table(l1, l1_size)):
        e &= OFFSET_MASK
        if not e:
            continue
        p.setdefault("l2", e)
        p["l2:%d" % i] = e
        for d in table(e, (1 << cluster_bits) // 8):
            if not d >> 62 & 1 and d & OFFSET_MASK:
                p.setdefault("data", d & OFFSET_MASK)
                break
    return p


def number(p, text):
    total = 0
    for term in re.findall(r"[^+]+", text):
        total += p[term] if term in p else int(term, 0)
    return total


def main():
    with open(sys.argv[1], "r+b") as f:
        p = places(f)
        args = sys.argv[2:]
        if not args:
            for k, v in p.items():
                print(k, v)
        while args:
            where, fmt, value = args[:3]
            args = args[3:]
            offset = number(p, where)
            f.seek(offset)
            if fmt == "s":
                f.write(bytes.fromhex(value))
                continue
            size = struct.calcsize(">" + fmt)
            old, = struct.unpack(">" + fmt, f.read(size).ljust(size, b"\0"))
            if value[0] in "+-|^":
                n = number(p, value[1:])
                new = {"+": old + n, "-": old - n,
                       "|": old | n, "^": old ^ n}[value[0]]
            else:
                new = number(p, value)
            f.seek(offset)
            f.write(struct.pack(">" + fmt, new & ((1 << 8 * size) - 1)))


main()
