#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Bitmaps, snapshots and the size are changed over the control socket while clients
# write.  An answer means that the change is durable.  Bitmaps and exports are there at
# once, what a client uses is not taken away, and the image is valid for QEMU.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$tmp/base.qcow2" 8M
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$img"
qemu-img bitmap --add "$tmp/base.qcow2" below
start_nbdkit control="$sockdir/qmp" "$img"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" <<'PY'
import sys
import threading
import qmp

c = qmp.Client(sys.argv[1])
MB = 1 << 20

def connect(export=""):
    return qmp.connect(sys.argv[2], export)

# Writers, each in a MiB of its own, which they fill with rounds of the same byte.
class Writer(threading.Thread):
    def __init__(self, number):
        super().__init__()
        self.number, self.rounds, self.ends = number, 0, False
        self.h = connect()

    def run(self):
        while not self.ends:
            self.rounds += 1
            self.h.pwrite(bytes([self.rounds % 255 + 1]) * MB, self.number * MB)
            if self.rounds % 7 == 0:
                self.h.flush()

writers = [Writer(i) for i in range(3)]
for w in writers:
    w.start()

def wait_round():
    before = [w.rounds for w in writers]
    while any(w.rounds < b + 2 for w, b in zip(writers, before)):
        pass

shown = {}
h = connect()
h.pwrite(b"A" * 65536, 5 * MB)
for i in range(12):
    name = "s%d" % i
    c.get("blockdev-snapshot-internal-sync", device="disk", name=name)
    # The export is there.
    s = connect(name)
    shown[name] = bytes(s.pread(6 * MB, 0))
    assert shown[name][5 * MB:5 * MB + 65536] == bytes([65 + i]) * 65536
    h.pwrite(bytes([66 + i]) * 65536, 5 * MB)
    c.get("block-dirty-bitmap-add", node="node0", name="b%d" % i, persistent=True)
    c.refuses("a client uses the snapshot", "blockdev-snapshot-delete-internal-sync",
              device="disk", name=name)
    wait_round()
    assert bytes(s.pread(6 * MB, 0)) == shown[name]
    s.shutdown()
    if i % 3 == 2:
        c.get("blockdev-snapshot-delete-internal-sync", device="node0",
              name="s%d" % (i - 1))
        del shown["s%d" % (i - 1)]
        c.get("block-dirty-bitmap-remove", node="disk", name="b%d" % (i - 1))
for name, data in shown.items():
    s = connect(name)
    assert bytes(s.pread(6 * MB, 0)) == data, name
    s.shutdown()

# Bitmaps record what is written from then on, and no more once they are disabled.
for w in writers:
    w.ends = True
for w in writers:
    w.join()
c.get("block-dirty-bitmap-add", node="node0", name="some", persistent=True,
      granularity=65536)
assert c.bitmap("some") == {"name": "some", "recording": True, "persistent": True,
                            "busy": False, "granularity": 65536, "count": 0}
h.pwrite(b"x" * 512, 7 * MB)
assert c.bitmap("some")["count"] == 65536
c.get("block-dirty-bitmap-disable", node="node0", name="some")
h.pwrite(b"x" * 512, 6 * MB)
assert c.bitmap("some")["count"] == 65536 and not c.bitmap("some")["recording"]
c.get("block-dirty-bitmap-add", node="node0", name="sum", persistent=True, disabled=True)
c.get("block-dirty-bitmap-merge", node="node0", target="sum",
      bitmaps=["some", {"node": "disk", "name": "b0"}])
assert c.bitmap("sum")["count"] >= 3 * MB + 2 * 65536 and not c.bitmap("sum")["recording"]
c.get("block-dirty-bitmap-merge", node="node0", target="sum",
      bitmaps=[{"node": "node1", "name": "below"}])
c.refuses("read-only", "block-dirty-bitmap-clear", node="node1", name="below")
c.get("block-dirty-bitmap-clear", node="node0", name="some")
assert c.bitmap("some")["count"] == 0
s = connect("bitmap:sum")
s.shutdown()

# New clients see the new size.
c.get("block_resize", device="disk", size=12 * MB)
assert h.get_size() == 8 * MB
g = connect()
assert g.get_size() == 12 * MB
g.pwrite(b"end!" * 128, 12 * MB - 512)
c.refuses("cannot become smaller", "block_resize", node_name="node0", size=8 * MB)
g.shutdown()
h.flush()
PY

# Durable when answered.
kill9_nbdkit
qemu-img info -U -f qcow2 "$img" > "$tmp/info"
cat "$tmp/info"
grep -q 'name: sum' "$tmp/info"
grep -q 'virtual size: 12 MiB' "$tmp/info"
[ "$(qemu-img snapshot -U -l "$img" | grep -c ' s[0-9]')" = 8 ]
start_nbdkit "$img"
nbdsh_run -c 'assert h.pread(4, (12 << 20) - 512) == b"end!"'
nbdsh_run -c 'h.pwrite(b"1", 0)'
stop_nbdkit
qemu-img check "$img"
