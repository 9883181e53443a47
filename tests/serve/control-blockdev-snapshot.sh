#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# blockdev-snapshot puts an image that blockdev-add has opened on top of the disk, while
# clients write: what was flushed is in the new image after kill -9, and the old one shows
# the instant.  Answers and errors are those of qemu-storage-daemon, except that an image
# that would show something else when it is opened again is refused.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version

make_one ()
{
  local d="$tmp/$1"
  mkdir "$d"
  qemu-img create -q -f qcow2 "$d/base.qcow2" 8M
  qemu-io -f qcow2 -c 'write -P 5 0 8M' "$d/base.qcow2"
  qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$d/a.qcow2"
  qemu-img create -q -f qcow2 -b a.qcow2 -F qcow2 "$d/b.qcow2"
  qemu-img create -q -f qcow2 -u -b b.qcow2 -F qcow2 -o cluster_size=4k "$d/c.qcow2" 8M
  qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$d/other.qcow2"
  qemu-img create -q -f qcow2 "$d/alone.qcow2" 8M
  qemu-img create -q -f qcow2 -u -b a.qcow2 -F qcow2 "$d/short.qcow2" 4M
  truncate -s 8M "$d/t.raw"
}
make_one ours
make_one theirs

qemu-img convert -f qcow2 -O raw "$tmp/ours/a.qcow2" "$tmp/model.raw"
start_both_served a.qcow2 node0

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" "$uri" <<'PY'
import sys
from qmp import Both, Writers

sockdir, tmp, uri = sys.argv[1:]
both = Both(sockdir, tmp)
ours, same = both.ours, both.ask

def add(name, file, driver="qcow2", **more):
    both.get("blockdev-add", driver=driver, node_name=name,
             file={"driver": "file", "filename": "DIR/" + file}, **more)

add("b", file="b.qcow2", backing=None)
add("other", file="other.qcow2")
add("r", file="t.raw", driver="raw")
same("blockdev-snapshot")
same("blockdev-snapshot", node="node0")
same("blockdev-snapshot", node=1, overlay="b")
same("blockdev-snapshot", node="node0", overlay="b", x=1)
same("blockdev-snapshot", node="zz", overlay="b")
same("blockdev-snapshot", node="node0", overlay="zz")
same("blockdev-snapshot", node="node0", overlay="node0")
same("blockdev-snapshot", node="node0", overlay="other")
same("blockdev-snapshot", node="node0", overlay="r")

for data in {}, {"node": "node0"}, {"node": "zz", "overlay": "b"}, \
        {"node": "node0", "overlay": "other"}, {"node": "node0", "overlay": "b", "x": 1}:
    same("transaction", actions=[{"type": "blockdev-snapshot", "data": data}])

# Here we are more careful: the files that are there later would not show the same disk.
def refuses(text, overlay, node="node0"):
    ours.refuses(text, "blockdev-snapshot", node=node, overlay=overlay)
def add_ours(name, file, **more):
    ours.get("blockdev-add", driver="qcow2", node_name=name, backing=None,
             file={"driver": "file", "filename": tmp + "/ours/" + file}, **more)
add_ours("alone", "alone.qcow2")
add_ours("short", "short.qcow2")
add_ours("c", "c.qcow2")
refuses("does not name", "alone")
refuses("another size", "short")
refuses("does not name", "c")
refuses("not the top", "b", node="node1")
ours.get("blockdev-del", node_name="alone")

# While clients write.
writers = Writers(uri, tmp + "/model.raw").start()
both.get("blockdev-snapshot", node="node0", overlay="b")
same("blockdev-del", node_name="b")
same("blockdev-snapshot", node="b", overlay="b")
ours.get("query-named-block-nodes")
snapshot = {"type": "blockdev-snapshot", "data": {"node": "disk", "overlay": "c"}}
ours.refuses("Abort action", "transaction", actions=[snapshot, {"type": "abort",
                                                                "data": {}}])
ours.get("transaction", actions=[snapshot])
ours.get("query-named-block-nodes")
writers.end()
names = [n["node-name"] for n in ours.get("query-named-block-nodes")]
assert names == ["c", "b", "node0", "node1", "short", "r", "other"], names
PY

kill9_nbdkit
for image in base a b; do check_clean "$tmp/ours/$image.qcow2"; done
start_nbdkit "$tmp/ours/c.qcow2"
nbdsh_run -c 'h.pwrite(h.pread(1, 0), 0)'
stop_nbdkit
check_clean "$tmp/ours/c.qcow2"
qemu-img compare -f qcow2 -F raw "$tmp/ours/c.qcow2" "$tmp/model.raw"
