#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A transaction that is refused has changed nothing, as qemu-img sees it: no snapshot or
# bitmap is in an image, no new one is left, and other processes can use the images.  If a
# filesystem is full, new images are taken back, and the node of one that had got a bitmap
# knows that.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

d="$tmp/dir"
mkdir "$d"
make_image "$d/one" 1M
make_image "$d/two" 1M
make_image "$d/old" 1M compat=0.10
make_image "$d/alone" 1M
qemu-img create -q -f qcow2 -b one -F qcow2 "$d/over"
qemu-img create -q -f qcow2 -b alone -F qcow2 "$d/x"
qemu-img create -q -f qcow2 -u -b two -F qcow2 "$d/short" 512k
qemu-img create -q -f qcow2 -b alone -F qcow2 "$d/node"
qemu-img create -q -f qcow2 -o cluster_size=2M -b two -F qcow2 "$d/large"
limit=$(stat -c %s "$d/large")
start_nbdkit control="$sockdir/qmp" dir="$d"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" "$d" "$nbdkit_pid" "$limit" <<'PY'
import json
import os
import resource
import subprocess
import sys
from qmp import Client, connect

c, sock, d, pid, limit = Client(sys.argv[1]), *sys.argv[2:]
pid, limit = int(pid), int(limit)

def sync(disk, file, **more):
    return {"type": "blockdev-snapshot-sync",
            "data": dict({"device": disk, "snapshot-file": d + "/" + file}, **more)}

def existing(disk, file):
    return sync(disk, file, mode="existing")

def named(disk, file, node):
    return sync(disk, file, **{"snapshot-node-name": node})

def snapshot(disk, node):
    return {"type": "blockdev-snapshot", "data": {"node": disk, "overlay": node}}

def bitmap(node, name="b"):
    return {"type": "block-dirty-bitmap-add",
            "data": {"node": node, "name": name, "persistent": True}}

def merge(node, target, *bitmaps):
    return {"type": "block-dirty-bitmap-merge",
            "data": {"node": node, "target": target, "bitmaps": list(bitmaps)}}

def internal(disk, name="s"):
    return {"type": "blockdev-snapshot-internal-sync", "data": {"device": disk, "name": name}}

def add_node():
    c.get("blockdev-add", driver="qcow2", node_name="n", backing=None,
          file={"driver": "file", "filename": d + "/node"})

def look(*options):
    found = {}
    for name in sorted(os.listdir(d)):
        info = json.loads(subprocess.run(
            ["qemu-img", "info", *options, "--output=json", "-f", "qcow2", d + "/" + name],
            check=True, capture_output=True).stdout)
        found[name] = info.get("snapshots"), info["format-specific"]["data"].get("bitmaps")
    return found

def none(text, *actions, options=()):
    before = look("-U")
    c.refuses(text, "transaction", actions=list(actions))
    after = look(*options)
    assert before == after, (actions, before, after)

none("another size", internal("two"), bitmap("two"), existing("two", "short"))
none("another size", bitmap("one"), sync("one", "new"), existing("two", "short"))
none("another size", existing("alone", "x"), bitmap("alone"), existing("two", "short"))
none("version 3", internal("two"), bitmap("old"))
none("not found", internal("alone"), sync("alone", "new"), bitmap("alone"),
     merge("alone", "b", {"node": "alone/node0", "name": "no"}))

# Another process uses the second one.
with subprocess.Popen(["qemu-io", "-r", "-f", "qcow2", d + "/two"], stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE) as reader:
    reader.stdout.read(1)
    none('"write" lock', bitmap("alone"), bitmap("two"))
    none('"write" lock', bitmap("alone"), sync("two", "new"))
    none('"write" lock', internal("alone"), bitmap("two"))
    reader.stdin.close()

# This server does, for the image above it.
h = connect(sock, "over")
none('"write" lock', internal("over"), bitmap("one"), options=["-U"])
h.shutdown()
while subprocess.run(["qemu-img", "info", "-f", "qcow2", d + "/over"],
                     capture_output=True).returncode:
    pass                        # until the server knows that

# Names of new nodes.
for actions in ((named("one", "new", "two"), bitmap("two")),
                (named("one", "new", "n"), named("two", "new2", "n"), bitmap("n"))):
    none("New overlay node-name already in use", *actions)

# The filesystem is full when the second new image is to get a bitmap.
add_node()
hs = [connect(sock, name) for name in ("alone", "two")]
resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
c.refuses("no new image was put on top", "transaction", actions=[
    snapshot("alone", "n"), bitmap("n"), existing("two", "large"), bitmap("two")])
resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
c.refuses("bitmaps of its own", "transaction", actions=[snapshot("alone", "n")])
assert subprocess.run(["qemu-io", "-f", "qcow2", "-c", "quit", d + "/node"]).returncode
c.get("blockdev-del", node_name="n")
subprocess.run(["qemu-img", "bitmap", "--remove", "-f", "qcow2", d + "/node", "b"],
               check=True)
add_node()
c.get("transaction", actions=[
    bitmap("alone"), snapshot("alone", "n"), bitmap("n", "c"),
    merge("n", "c", {"node": "alone/node0", "name": "b"}), internal("two"), bitmap("two")])
hs[0].pwrite(b"x" * 65536, 0)
for h in hs:
    h.shutdown()
PY
stop_nbdkit
for name in "$d"/*; do
  check_clean "$name"
done
qemu-img info -f qcow2 "$d/node" | grep -q 'name: c$'
qemu-img info -f qcow2 "$d/two" | grep -q 'name: b$'
qemu-io -r -f qcow2 -c 'read -P 120 0 64k' "$d/node" > "$tmp/out"
if grep -i fail "$tmp/out"; then fail 'the disk has lost data'; fi
