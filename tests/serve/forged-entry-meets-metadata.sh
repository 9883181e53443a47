#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An L2 entry of a forged image points to a cluster that counts as free.  A client looks
# it up, then the cluster becomes an L2 table.  Whatever requests use that entry
# afterwards: the table is not overwritten and not freed, the image is marked corrupt, and
# the data that the table maps is intact.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"

# forge ENTRY: the cluster at guest offset 3M is where the file ends, by this sort of entry.
forge ()
{
  "$python" - "$img" "$1" <<'PY'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    b = f.read()
    l1, = struct.unpack_from(">Q", b, 40)
    table = struct.unpack_from(">Q", b, l1)[0] & 0x00fffffffffffe00
    end = (len(b) + 65535) // 65536 * 65536
    f.seek(table + 8 * 48)
    f.write(struct.pack(">Q", end | {
        "normal": 1 << 63, "zero": 1 << 63 | 1, "shared": 0,
        "compressed": 1 << 62 | 3 << 54}[sys.argv[2]]))
PY
}

for entry in normal zero shared compressed; do
  for op in 'pwrite(b"E" * 65536, 3 << 20)' 'pwrite(b"E" * 512, 3 << 20)' \
    'trim(65536, 3 << 20)' 'zero(65536, 3 << 20)'; do
    make_image "$img" 2G
    qemu-io -f qcow2 -c 'write -P 1 0 64k' -c 'write -P 2 3M 64k' "$img" > /dev/null
    forge "$entry"
    start_nbdkit file="$img"
    nbdsh_run -c - <<PY
h.block_status(1 << 20, 3 << 20, lambda *a: 0)
# In another L2 table, a new one.
h.pwrite(b"D" * 65536, 600 << 20)
h.flush()
try:
    h.$op
    h.flush()
    raise SystemExit("it was done")
except nbd.Error as e:
    assert e.string.find("Input/output") >= 0, e
PY
    stop_nbdkit
    is_marked_corrupt "$img"
    qemu-io -r -f qcow2 -c 'read -P 68 600M 64k' "$img" | grep -q 'read 65536/65536'
    if qemu-io -r -f qcow2 -c 'read -P 68 600M 64k' "$img" | grep verification; then
      fail "$entry, $op: what the table maps is lost"
    fi
  done
done

# The table is put there by the very request that goes through the entry.
for entry in zero shared compressed; do
  make_image "$img" 2G
  qemu-io -f qcow2 -c 'write -P 1 0 64k' -c 'write -P 2 3M 64k' -c 'write -P 7 400M 64k' \
    "$img" > /dev/null
  qemu-img snapshot -c s "$img"
  forge "$entry"
  start_nbdkit file="$img"
  nbdsh_run -c - <<'PY'
try:
    h.pwrite(b"E" * 65536, 3 << 20)
    h.flush()
    raise SystemExit("it was done")
except nbd.Error as e:
    assert e.string.find("Input/output") >= 0, e
PY
  stop_nbdkit
  is_marked_corrupt "$img"
  if qemu-io -r -f qcow2 -c 'read -P 7 400M 64k' "$img" 2>&1 | grep 'verif\|failed'; then
    fail "$entry: what the table maps is lost"
  fi
done

# What lies before it is served: two clusters one after the other, the second one a table.
make_image "$img" 2G
qemu-io -f qcow2 -c 'write -P 1 0 64k' -c 'write -P 2 600M 64k' "$img" > /dev/null
"$python" "$srcdir/lib/patch.py" "$img" data+0 B 1 l2+8 Q l2:1 l2+8 Q '|0x8000000000000000'
"$python" - "$img" <<'PY'
import struct, sys
b = open(sys.argv[1], "rb").read()
l1, = struct.unpack_from(">Q", b, 40)
first, second = (struct.unpack_from(">Q", b, l1 + 8 * i)[0] & 0x00fffffffffffe00
                 for i in (0, 1))
one, two = struct.unpack_from(">QQ", b, first)
assert two == second | 1 << 63 and (one & 0x00fffffffffffe00) + 65536 == second
PY
start_nbdkit -r -- file="$img"
nbdsh_run -c - <<'PY'
def fails(n, at):
    try:
        h.pread(n, at)
    except nbd.Error as e:
        assert e.string.find("Input/output") >= 0, e
        return True

assert h.pread(65536, 0) == b"\1" * 65536
assert h.pread(100, 65400) == b"\1" * 100
assert fails(1, 65536) and fails(200, 65400) and fails(131072, 0)
PY
stop_nbdkit
start_nbdkit file="$img"
nbdsh_run -c - <<'PY'
assert h.pread(100, 65400) == b"\1" * 100
h.pwrite(b"\3" * 65536, 0)
try:
    h.pwrite(b"E" * 131072, 0)
    raise SystemExit("it was done")
except nbd.Error as e:
    assert e.string.find("Input/output") >= 0, e
PY
stop_nbdkit
is_marked_corrupt "$img"
qemu-io -r -f qcow2 -c 'read -P 2 600M 64k' "$img" | grep -q 'read 65536/65536'
