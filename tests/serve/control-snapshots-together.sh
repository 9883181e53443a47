#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# External snapshots in a transaction with other actions, as qemu-storage-daemon takes them:
# the new image can get bitmaps in the same step.  With dir=, those of several disks are of
# one instant: a client writes a number to one disk, and then to the other, and no snapshot
# has it on the second one alone.  If an action fails, no new image is on top, and none is
# left.  The name of a disk means its new image, also after all clients have left.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version

# --- as qemu-storage-daemon ---

for d in ours theirs; do
  mkdir "$tmp/$d"
  qemu-img create -q -f qcow2 "$tmp/$d/a.qcow2" 8M
  qemu-io -f qcow2 -c 'write -P 5 0 8M' "$tmp/$d/a.qcow2"
  qemu-img create -q -f qcow2 -b a.qcow2 -F qcow2 "$tmp/$d/b.qcow2"
  qemu-img create -q -f qcow2 -b b.qcow2 -F qcow2 "$tmp/$d/c.qcow2"
done
qemu-img convert -f qcow2 -O raw "$tmp/ours/a.qcow2" "$tmp/model.raw"
start_both_served a.qcow2 node0

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" "$uri" <<'PY'
import sys
from qmp import Both, Writers

sockdir, tmp, uri = sys.argv[1:]
both = Both(sockdir, tmp)

def add(name):
    both.get("blockdev-add", driver="qcow2", node_name=name, backing=None,
             file={"driver": "file", "filename": "DIR/%s.qcow2" % name})

def snapshot(node, overlay):
    return {"type": "blockdev-snapshot", "data": {"node": node, "overlay": overlay}}

def bitmap(what, node, name="b0", **more):
    return {"type": "block-dirty-bitmap-" + what, "data": dict(more, node=node, name=name)}

def internal(name, device="node0"):
    return {"type": "blockdev-snapshot-internal-sync", "data": {"device": device, "name": name}}

def together(*actions):
    return both.ask("transaction", actions=list(actions))

ABORT = {"type": "abort", "data": {}}
both.get("block-dirty-bitmap-add", node="node0", name="b0", persistent=True)
add("b")
writers = Writers(uri, tmp + "/model.raw").start()
together(snapshot("node0", "b"), ABORT)
together(ABORT, snapshot("node0", "b"))
together(snapshot("node0", "b"), snapshot("zz", "b"))
together(snapshot("node0", "zz"), internal("s"))
together(bitmap("add", "b", persistent=True), snapshot("node0", "b"), ABORT)
together(bitmap("add", "b", persistent=True), snapshot("node0", "b"),
         bitmap("add", "b", persistent=True))
together(snapshot("node0", "b"), bitmap("clear", "b", name="none"))
together(snapshot("node0", "b"), bitmap("disable", "node0", name="none"))
for c in both.clients:
    assert c.node()["image"].get("snapshots") is None
answer = together(internal("s"), bitmap("add", "b", persistent=True),
                  bitmap("add", "b", name="b1", persistent=True, disabled=True),
                  bitmap("disable", "node0"), snapshot("node0", "b"))
assert "return" in answer, answer
writers.rest()
writers.start()
add("c")
answer = together(snapshot("b", "c"), bitmap("add", "c", persistent=True))
assert "return" in answer, answer
both.ours.refuses("one snapshot", "transaction", actions=[
    {"type": "blockdev-snapshot-sync", "data": {"device": "disk", "snapshot-file": tmp + "/x"}},
    {"type": "blockdev-snapshot-internal-sync", "data": {"device": "disk", "name": "y"}}])
writers.end()
both.ask("quit")
PY
await_end "$nbdkit_pid"
end_storage_daemon
for i in a b c; do
  check_clean "$tmp/ours/$i.qcow2"
  for d in ours theirs; do
    qemu-img info -f qcow2 --output=json "$tmp/$d/$i.qcow2" |
      "$python" -c 'import json, sys
i = json.load(sys.stdin)
print([s["name"] for s in i.get("snapshots", [])],
      sorted(i["format-specific"]["data"].get("bitmaps", []), key=str))' > "$tmp/$d-info"
  done
  cmp "$tmp/ours-info" "$tmp/theirs-info"
done
qemu-img compare -f qcow2 -F raw "$tmp/ours/c.qcow2" "$tmp/model.raw"
[ ! -e "$tmp/x" ]

# --- several disks ---

d="$tmp/dir"
mkdir "$d"
make_image "$d/one" 1M
make_image "$d/two" 1M
qemu-img create -q -f qcow2 -u -b two -F qcow2 "$d/short" 512k
start_nbdkit control="$sockdir/qmp" dir="$d"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" "$d" <<'PY'
import os
import struct
import sys
import threading
from qmp import Client, connect

c, sock, d = Client(sys.argv[1]), *sys.argv[2:]

class Writer(threading.Thread):
    n, ends = 0, False

    def run(self):
        self.disks = [connect(sock, name) for name in ("one", "two")]
        while not self.ends:
            self.n += 1
            for h in self.disks:
                h.pwrite(struct.pack("<Q", self.n) * 64, 0)
        for h in self.disks:
            h.shutdown()

def sync(disk, file, **more):
    return {"type": "blockdev-snapshot-sync",
            "data": dict({"device": disk, "snapshot-file": d + "/" + file}, **more)}

def layers(disk):
    return [os.path.basename(n["file"]) for n in c.get("query-named-block-nodes")
            if n["node-name"].startswith(disk + "/")]

w = Writer()
w.start()
while w.n == 0:
    pass
for i in range(8):
    before = w.n
    while w.n < before + 5:
        pass
    c.get("transaction", actions=[sync(x, "%s.%d" % (x, i)) for x in ("two", "one")])
chains = [layers(x) for x in ("one", "two")]
assert [len(x) for x in chains] == [9, 9], chains
c.refuses("another size", "transaction", actions=[
    sync("one", "x"), sync("two", "short", mode="existing")])
c.refuses("exists already", "transaction", actions=[sync("one", "x"), sync("two", "one")])
assert [layers(x) for x in ("one", "two")] == chains
assert not os.path.exists(d + "/x")
before = w.n
while w.n < before + 5:
    pass
w.ends = True
w.join()
for x in "one", "two":
    h = connect(sock, x)
    assert struct.unpack("<Q", h.pread(8, 0))[0] == w.n
    h.flush()                   # (the writer may not be known to have left)
    h.shutdown()
with open(d + "/last", "w") as f:
    f.write(str(w.n))
PY
kill9_nbdkit
number ()
{
  qemu-img dd -f qcow2 -O raw if="$d/$1" of="$tmp/sector" bs=512 count=1
  "$python" -c 'import struct, sys
print(struct.unpack("<Q", open(sys.argv[1], "rb").read(8))[0])' "$tmp/sector"
}
for i in '' .0 .1 .2 .3 .4 .5 .6; do
  check_clean "$d/one$i"
  a=$(number "one$i") b=$(number "two$i")
  [ "$a" = "$b" ] || [ "$a" = $((b + 1)) ] || fail "snapshot $i: $a and $b"
  [ "$a" -gt "${last:-0}" ] || fail "snapshot $i is not later"
  last=$a
done
for x in one two; do
  start_nbdkit "$d/$x.7"
  nbdsh_run -c 'h.pwrite(h.pread(512, 512), 512)'
  stop_nbdkit
  check_clean "$d/$x.7"
  [ "$(number $x.7)" = "$(cat "$d/last")" ]
done
