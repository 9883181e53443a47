#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The export bitmap:NAME@SNAPSHOT shows the data of the snapshot where the bitmap is
# marked: applied to an older full copy it gives the snapshot, whatever clients have written
# since.  The snapshot stays while a client reads it.  Names that do not exist, and a
# snapshot of another size, are refused; none of these exports is listed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version

img="$tmp/a.qcow2"
make_image "$img" 8M
qemu-img bitmap --add "$img" "mon@day"
start_nbdkit control="$sockdir/qmp" "$img"
nbdsh_run -c 'h.pwrite(b"1" * (4 << 20), 0)' -c 'h.flush()'
cp --sparse=always "$img" "$tmp/full.qcow2"
qemu-img convert -U -f qcow2 -O raw "$tmp/full.qcow2" "$tmp/full.raw"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" "$tmp" <<'PY'
import sys
import nbd
import qmp

SIZE, BLOCK = 8 << 20, 65536
c = qmp.Client(sys.argv[1])

def connect(export=""):
    return qmp.connect(sys.argv[2], export)

def refused(export):
    try:
        connect(export)
    except nbd.Error:
        return
    raise SystemExit("%s is served" % export)

def marked(h):
    found = []
    def f(context, offset, entries, err):
        for length, flags in zip(entries[::2], entries[1::2]):
            if flags == 0:
                found.append((offset, length))
            offset += length
    h.block_status(SIZE, 0, f)
    return found

h = connect()
c.get("block-dirty-bitmap-clear", node="node0", name="mon@day")
h.pwrite(b"2" * BLOCK, 1 << 20)
h.zero(2 * BLOCK, 2 << 20)
h.pwrite(b"3" * 512, 6 << 20)
c.get("transaction", actions=[
    {"type": "blockdev-snapshot-internal-sync",
     "data": {"device": "disk", "name": "S@1"}},
    {"type": "block-dirty-bitmap-disable", "data": {"node": "node0", "name": "mon@day"}},
    {"type": "block-dirty-bitmap-add", "data": {"node": "node0", "name": "tuesday",
                                                "persistent": True}}])
then = connect("S@1").pread(SIZE, 0)
h.pwrite(b"4" * SIZE, 0)

b = connect("bitmap:mon@day@S@1")
assert marked(b) == [(1 << 20, BLOCK), (2 << 20, 2 * BLOCK), (6 << 20, BLOCK)], marked(b)
assert b.is_read_only() and b.get_size() == SIZE
model = bytearray(open(sys.argv[3] + "/full.raw", "rb").read())
for at, n in marked(b):
    model[at:at + n] = b.pread(n, at)
assert model == then
assert b.pread(BLOCK, 0) == bytes(BLOCK)         # not marked
assert connect("bitmap:mon@day").pread(4, 1 << 20) == b"4444"
assert connect("bitmap:mon@day@1").pread(4, 1 << 20) == b"2222"         # its id

for name in "mon@day@S", "mon@S@1", "mon@day@", "@S@1", "tuesday@", "mon@day@S@1@":
    refused("bitmap:" + name)

# Its clusters are still needed.
c.refuses("a client uses the snapshot", "blockdev-snapshot-delete-internal-sync",
          device="disk", name="S@1")
assert b.pread(4, 1 << 20) == b"2222"
b.shutdown()

c.get("block_resize", **{"node-name": "node0", "size": 2 * SIZE})
refused("bitmap:mon@day@S@1")
PY
grep 'a bitmap of a disk of 16777216 bytes cannot be served with a snapshot of 8388608' \
  "$tmp/main.log"
grep 'there is no bitmap "mon@day@S"' "$tmp/main.log"
nbdinfo --list "$uri" > "$tmp/list"
grep '^export="bitmap:mon@day"' "$tmp/list"
if grep 'bitmap:mon@day@' "$tmp/list"; then fail "it is listed"; fi
stop_nbdkit
check_clean "$img"

# A bitmap of that name counts.
qemu-img bitmap --add -g 1M "$img" "tuesday@S@1"
start_nbdkit -r -- file="$img"
nbdinfo "$(export_uri "bitmap:tuesday@S@1")" | grep 'pieces of 1048576 bytes'
stop_nbdkit
