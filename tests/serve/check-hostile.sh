#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Images designed to keep a check busy (millions of tables in holes of a large sparse
# file, one L1 table for 64 Ki snapshots, one refcount block for the whole table) are
# refused soon, with little memory.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires truncate -s 8T "$tmp/probe"
rm "$tmp/probe"

"$python" - "$tmp" <<'PY'
import struct, sys
TIB = 1 << 40

def image(name, bits, entries, size, l1_entry, tables=1, reftable=None, snapshots=0,
          order=4):
    cs = 1 << bits
    l1 = 64 * cs
    rt = l1 + (entries * 8 + cs - 1) // cs * cs
    snap = rt + tables * cs
    with open("%s/%s.qcow2" % (sys.argv[1], name), "wb") as f:
        f.write(struct.pack(
            ">4sIQIIQIIQQIIQQQQII", b"QFI\xfb", 3, 0, 0, bits, size, 0, entries, l1,
            rt, tables, snapshots, snap if snapshots else 0, 0, 0, 0, order, 104))
        f.seek(l1)
        f.write(b"".join(struct.pack(">Q", l1_entry(i)) for i in range(entries)))
        if reftable:
            f.seek(rt)
            f.write(struct.pack(">Q", reftable) * (tables * cs // 8))
        f.seek(snap)
        f.write(struct.pack(">QIHHIIQIIQQ", l1, entries, 0, 0, 0, 0, 0, 0, 16, 0, 0)
                * snapshots)
        f.truncate(8 * TIB)

image("holes", 16, 1 << 22, 1 << 50, lambda i: TIB + i * 65536)
image("same", 16, 1 << 22, 1 << 50, lambda i: TIB)
image("block", 9, 1 << 16, 1 << 30, lambda i: 0, 16384, 512 * 32, order=0)
image("snapshots", 16, 1 << 20, 1 << 48, lambda i: TIB + i * 65536, snapshots=65536)
PY

for name in holes same block snapshots; do
  for mode in quick full; do
    status=0
    ( ulimit -v 700000
      "${soon[@]}" "$NBDKIT" -U - "$PLUGIN" "$tmp/$name.qcow2" check=$mode \
        check-report="$tmp/report.json" --run 'echo SERVED' ) \
      > "$tmp/out" 2> "$tmp/err" || status=$?
    [ "$status" = 1 ]
    [ ! -s "$tmp/out" ]
    tail -n 1 "$tmp/err" | grep CORRUPT
    [ "$(file_size "$tmp/report.json")" -lt 500000 ]
    if [ "$name" != same ]; then break; fi
  done
done
