#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A transaction is one instant: while clients write, it takes a snapshot, adds a bitmap
# and disables the one before.  Then that one marks exactly what differs between the two
# snapshots.  If an action fails, none has happened.  After kill -9, all that was
# answered is there.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 8M
start_nbdkit control="$sockdir/qmp" "$img"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" <<'PY'
import random
import struct
import sys
import threading
import nbd
import qmp

BLOCK, BLOCKS = 65536, 128
c = qmp.Client(sys.argv[1])

def connect(export=""):
    return qmp.connect(sys.argv[2], export)

class Writer(threading.Thread):
    """Writes random blocks, each with contents that nothing else has ever had."""
    def __init__(self, number):
        super().__init__()
        self.number, self.count, self.ends = number, 0, False
        self.random = random.Random(number)
        self.h = connect()

    def run(self):
        while not self.ends:
            self.count += 1
            at = self.random.randrange(BLOCKS) * BLOCK
            self.h.pwrite(struct.pack("<II", self.number, self.count) * (BLOCK // 8), at)
            if self.count % 10 == 0:
                self.h.flush()

def take(i):
    actions = [{"type": "blockdev-snapshot-internal-sync",
                "data": {"device": "disk", "name": "s%d" % i}},
               {"type": "block-dirty-bitmap-add",
                "data": {"node": "node0", "name": "b%d" % i, "persistent": True,
                         "granularity": BLOCK}}]
    if i > 0:
        actions.append({"type": "block-dirty-bitmap-disable",
                        "data": {"node": "node0", "name": "b%d" % (i - 1)}})
    random.shuffle(actions)
    c.get("transaction", actions=actions)

def marked(name):
    h, found = connect("bitmap:" + name), set()
    def extent(context, offset, entries, error):
        for length, flags in zip(entries[::2], entries[1::2]):
            if not flags & nbd.STATE_HOLE:
                found.update(range(offset // BLOCK, (offset + length) // BLOCK))
            offset += length
    h.block_status(BLOCK * BLOCKS, 0, extent)
    h.shutdown()
    return found

def contents(name):
    h = connect(name)
    data = bytes(h.pread(BLOCK * BLOCKS, 0))
    h.shutdown()
    return data

writers = [Writer(i) for i in (1, 2, 3)]
for w in writers:
    w.start()
INSTANTS = 12
for i in range(INSTANTS):
    take(i)
    before = [w.count for w in writers]
    while any(w.count < b + 5 for w, b in zip(writers, before)):
        pass

# Nothing of these.
was = c.node()
for bad in ({"type": "abort", "data": {}},
            {"type": "block-dirty-bitmap-clear",
             "data": {"node": "node0", "name": "none"}},
            {"type": "block-dirty-bitmap-add",
             "data": {"node": "node0", "name": "x", "persistent": True}},
            {"type": "blockdev-snapshot-internal-sync",
             "data": {"device": "disk", "name": "y"}}):
    answer = c.ask("transaction", actions=[
        {"type": "blockdev-snapshot-internal-sync",
         "data": {"device": "disk", "name": "x"}},
        {"type": "block-dirty-bitmap-add",
         "data": {"node": "node0", "name": "x", "persistent": True}}, bad])
    assert "error" in answer, answer
now = c.node()
assert [s["name"] for s in now["image"]["snapshots"]] == \
    ["s%d" % i for i in range(INSTANTS)]
assert [b["name"] for b in now["dirty-bitmaps"]] == \
    [b["name"] for b in was["dirty-bitmaps"]]
for w in writers:
    w.ends = True
for w in writers:
    w.join()

total = 0
for i in range(INSTANTS - 1):
    a, b = contents("s%d" % i), contents("s%d" % (i + 1))
    differ = {n for n in range(BLOCKS)
              if a[n * BLOCK:(n + 1) * BLOCK] != b[n * BLOCK:(n + 1) * BLOCK]}
    assert marked("b%d" % i) == differ, (i, sorted(marked("b%d" % i) ^ differ))
    assert not c.bitmap("b%d" % i)["recording"]
    total += len(differ)
assert c.bitmap("b%d" % (INSTANTS - 1))["recording"]
assert total > 0
print(total, "blocks differ")
PY

kill9_nbdkit
qemu-img snapshot -U -l "$img" | grep ' s11 '
qemu-img info -U -f qcow2 "$img" | grep 'name: b11$'
start_nbdkit "$img"
nbdsh_run -c 'h.pwrite(b"1", 0)'
stop_nbdkit
qemu-img check "$img"
