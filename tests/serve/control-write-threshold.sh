#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# block-set-write-threshold answers as qemu-storage-daemon does for the node of the storage:
# when clusters beyond that place are allocated, clients of the control socket get one event,
# and the threshold is gone.  It can be taken back; it tells at once if the file is used
# beyond it already, also when the first writer comes only later; and it does not outlive the
# image's place on top.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version

for i in ours theirs; do
  mkdir "$tmp/$i"
  qemu-img create -q -f qcow2 "$tmp/$i/a.qcow2" 64M
done
start_nbdkit control="$sockdir/o.qmp" "$tmp/ours/a.qcow2"
start_storage_daemon --blockdev "driver=file,filename=$tmp/theirs/a.qcow2,node-name=node0" \
  --blockdev driver=qcow2,file=node0,node-name=disk \
  --nbd-server addr.type=unix,addr.path="$sockdir/t.nbd" \
  --export nbd,id=disk,node-name=disk,writable=on,name=

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" <<'PY'
import sys
from qmp import Both, connect

sockdir, tmp = sys.argv[1:]
both = Both(sockdir, tmp, lambda key, of: key == "amount-exceeded")
ours, same, ok = both.ours, both.ask, both.get
MIB = 1 << 20
ns = [sockdir + "/main.sock", sockdir + "/t.nbd"]
handles = [connect(n) for n in ns]

def write(at, size=MIB):
    for h in handles:
        h.pwrite(b"x" * size, at)

def threshold():
    return both.compare("threshold", lambda c: [
        n["write_threshold"] for n in c.get("query-named-block-nodes")
        if n["node-name"] == "node0"])[0]

def told(bytes):
    both.until_event("BLOCK_WRITE_THRESHOLD")
    assert threshold() == 0

name = "block-set-write-threshold"
same(name)
same(name, node_name="node0")
same(name, node_name="node0", write_threshold="x")
same(name, node_name="nope", write_threshold=1)
same(name, node_name=1, write_threshold=1)
same(name, node_name="node0", write_threshold=1, foo=1)

ok(name, node_name="node0", write_threshold=4 * MIB)
assert threshold() == 4 * MIB
write(0)
write(60 * MIB)
assert threshold() == 4 * MIB
assert not any(c.events for c in both.clients)
for i in range(1, 5):
    write(i * MIB)
told(4 * MIB)
write(10 * MIB)
ok(name, node_name="node0", write_threshold=40 * MIB)
ok(name, node_name="node0", write_threshold=0)
assert threshold() == 0
assert not any(c.events for c in both.clients)

# Ours alone tells at once.
ours.get(name, node_name="node0", write_threshold=2 * MIB)
data = ours.until_event("BLOCK_WRITE_THRESHOLD")[-1]["data"]
assert data["write-threshold"] == 2 * MIB and data["amount-exceeded"] >= 5 * MIB, data

ours.get(name, node_name="node0", write_threshold=40 * MIB)
ours.get("blockdev-snapshot-sync", device="disk", snapshot_file=tmp + "/ours/top.qcow2")
assert [n["write_threshold"] for n in ours.get("query-named-block-nodes")] == [0, 0]
ours.refuses("read-only", name, node_name="node0", write_threshold=1)
PY
stop_nbdkit
end_storage_daemon

# A disk of a directory, which is not written yet; a data file.
mkdir "$tmp/dir"
mv "$tmp/ours/a.qcow2" "$tmp/dir/i"
(cd "$tmp/dir" && qemu-img create -q -f qcow2 -o data_file=data j 1M)
start_nbdkit control="$sockdir/qmp" dir="$tmp/dir"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" <<'PY'
import sys
from qmp import Client, connect

c = Client(sys.argv[1] + "/qmp")
h = connect(sys.argv[1] + "/main.sock", "i")
c.get("block-set-write-threshold", node_name="i/node0", write_threshold=1 << 20)
h.pwrite(b"x", 0)
data = c.until_event("BLOCK_WRITE_THRESHOLD")[-1]["data"]
assert data["node-name"] == "i/node0", data
c.refuses("external data file", "block-set-write-threshold", node_name="j",
          write_threshold=1)
PY
stop_nbdkit
