#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A check does the same work once: compressed bytes that many entries point to are
# decompressed once, an L2 table that many L1 entries point to is read once, also with an
# external data file.  If entries point to bytes that overlap, so that there is no end to
# the work, the check gives up.  nbdkit-qcow2-validate does not read such a disk.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-img --version

cd "$tmp"
"$python" - <<'PY'
import struct, zlib

def image(name, bits, size, l1, l2, data=b"", incompatible=0):
    """The clusters: header, refcount table and block, L1, L2 tables, data."""
    cs = 1 << bits
    l1_clusters = -(-len(l1) * 8 // cs)
    first = 3 + l1_clusters + len(l2)
    references = sum(1 for table in l2 for entry in table if entry)
    with open(name, "wb") as f:
        f.write(struct.pack(">4sIQIIQIIQQIIQQQQII", b"QFI\xfb", 3, 0, 0, bits, size, 0,
                            len(l1), 3 * cs, cs, 1, 0, 0, incompatible, 0, 0, 6, 104))
        f.seek(cs)
        f.write(struct.pack(">Q", 2 * cs))
        f.seek(2 * cs)
        f.write(struct.pack(">%dQ" % (first + 1), *[1] * first, references))
        f.seek(3 * cs)
        f.write(struct.pack(">%dQ" % len(l1), *l1))
        for i, table in enumerate(l2):
            f.seek((3 + l1_clusters + i) * cs)
            f.write(struct.pack(">%dQ" % len(table), *table))
        f.seek(first * cs)
        f.write(data)
        f.truncate((first + 1) * cs)

def bomb(name, bits, starts=1, spoilt=b""):
    """A full L2 table whose entries point to a stream; each empty block that goes before
    it is a place where one can begin, too."""
    cs, n, empty = 1 << bits, (1 << bits) // 8, b"\0\0\0\xff\xff"
    c = zlib.compressobj(9, zlib.DEFLATED, -12)
    stream = empty * starts + (spoilt or c.compress(b"\xaa" * cs) + c.flush())

    def entry(i):
        at = 5 * cs + i % starts * len(empty)
        sectors = (len(stream) + at % 512) // 512 + (i // starts if starts > 1 else 0)
        return 1 << 62 | sectors << 70 - bits | at

    image(name, bits, n * cs, [1 << 63 | 4 * cs], [[entry(i) for i in range(n)]], stream)

bomb("same.qcow2", 21)
bomb("spoilt.qcow2", 16, spoilt=b"\xff" * 99)
bomb("overlap.qcow2", 21, 1000)
cs = 1 << 16
image("table.qcow2", 16, 1 << 50, [1 << 63 | (3 + 512) * cs] * (1 << 22),
      [[1 << 63 | 1 << 30] * (cs // 8)], incompatible=4)
PY

# checked STATUS VERDICT IMAGE PARAMETER...: soon.
checked ()
{
  local status=0 expected="$1" verdict="$2"
  shift 2
  "${soon[@]}" "$NBDKIT" -r -U - "$PLUGIN" "$@" check-report=report.json --run true \
    2> err || status=$?
  cat err
  [ "$status" = "$expected" ] || fail "exit status $status"
  [ "$(in_report 'r["verdict"]')" = "$verdict" ]
}

in_report ()
{
  "$python" -c 'import json; r = json.load(open("report.json")); print('"$1"')'
}

qemu-img check same.qcow2
checked 0 clean same.qcow2 check=full
checked 0 clean same.qcow2 check=full untrusted=true
# Each entry is a fault nevertheless.
checked 1 corrupt spoilt.qcow2 check=full
[ "$(in_report 'r["corruptions"]')" = 8192 ]
for mode in quick full; do
  checked 1 corrupt table.qcow2 check=$mode
done
checked 0 clean overlap.qcow2 check=quick
for untrusted in false true; do
  checked 1 failed overlap.qcow2 check=full untrusted=$untrusted
  [ "$(in_report '*[e["kind"] for e in r["layers"][0]["errors"]]')" = too-much-work ]
done

# validate STATUS ARGUMENT...
validate ()
{
  local status=0 expected="$1"
  shift
  "${soon[@]}" "$abs_top_builddir/img/nbdkit-qcow2-img" validate "$@" > out || status=$?
  cat out
  [ "$status" = "$expected" ] || fail "exit status $status"
}

validate 3 same.qcow2
grep 'not ok 2 - same.qcow2: read' out
grep 'use --timeout' out
validate 0 --no-read same.qcow2
validate 3 --timeout 2 same.qcow2
grep 'took longer than 2 seconds' out
validate 3 overlap.qcow2
validate 1 --policy upload --check full --no-read overlap.qcow2
