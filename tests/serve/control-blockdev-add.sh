#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Nodes come and go by command: blockdev-add and blockdev-del answer as
# qemu-storage-daemon does, to right and wrong arguments, and show the same nodes.  As
# with QEMU, an image that is added can no longer be written by others, and one that
# others write is not added.  Nodes that are in use stay, and there are not more than a
# bounded number of them.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version

make_one ()
{
  mkdir "$tmp/$1"
  qemu-img create -q -f qcow2 "$tmp/$1/base.qcow2" 8M
  qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$tmp/$1/a.qcow2"
  qemu-img create -q -f qcow2 -o cluster_size=4k "$tmp/$1/t.qcow2" 8M
  qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$tmp/$1/over.qcow2"
  qemu-img create -q -f qcow2 -b a.qcow2 -F qcow2 "$tmp/$1/top.qcow2"
  truncate -s 8M "$tmp/$1/t.raw"
  mkdir "$tmp/$1/dir"
}
make_one ours
make_one theirs

start_both_served a.qcow2 node0

# A server for the driver nbd.
truncate -s 8M "$tmp/n.raw"
qemu-nbd -f raw -t -k "$sockdir/n.nbd" -e 9 -x the-disk "$tmp/n.raw" &
helper_pids+=($!)
await -p "$!" listens "$sockdir/n.nbd"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" <<'PY'
import subprocess
import sys
from qmp import Both

sockdir, tmp = sys.argv[1:]
both = Both(sockdir, tmp)
ours, same, ok = both.ours, both.ask, both.get

def both_refuse(text, command, **d):
    """With texts of their own; in ours is this."""
    a, b = both.each(command, **d)
    assert a["error"]["class"] == b["error"]["class"], (a, b)
    assert text in a["error"]["desc"], a

def add(*drivers, **d):
    return same("blockdev-add", **d)

def file(name):
    return {"driver": "file", "filename": name}

# Wrong arguments.
add()
add(driver="foo")
add(driver=3)
add(driver="qcow2")
add(driver="qcow2", node_name="x")
add(driver="raw")
add(driver="file")
add(driver="file", node_name="f", filename=3)
add(driver="nbd", node_name="n")
add(driver="qcow2", file=file("DIR/t.qcow2"))
add(driver="qcow2", node_name="t", file=3)
add(driver="qcow2", node_name="t", file=None)
add(driver="qcow2", node_name="t", file={"driver": "file"})
add(driver="qcow2", node_name="t", file={"filename": "x"})
add(driver="qcow2", node_name="t", file={"driver": "foo"})
add(driver="qcow2", node_name="t", file={"driver": 3})
add(driver="qcow2", node_name="t", file={"driver": "file", "filename": "/x", "discard": "x"})
add(driver="qcow2", node_name="t", file={"driver": "file", "filename": 3})
add(driver="qcow2", node_name="t", file={"driver": "file", "filename": "/x", "foo": 3})
add(driver="qcow2", node_name="t", file="nof")
add(driver="qcow2", node_name="9t", file=file("DIR/t.qcow2"))
add(driver="qcow2", node_name="t" * 40, file=file("DIR/t.qcow2"))
add(driver="qcow2", node_name="node0", file=file("DIR/t.qcow2"))
add(driver="qcow2", node_name="t", file=file("DIR/t.qcow2"), foo=1)
add(driver="qcow2", node_name="t", file=file("DIR/t.qcow2"), read_only="yes")
add(driver="qcow2", node_name="t", file=file("DIR/t.qcow2"), discard="x")
add(driver="qcow2", node_name="t", file=file("DIR/t.qcow2"), detect_zeroes="x")
add(driver="qcow2", node_name="t", file=file("DIR/nowhere"))
add(driver="file", node_name="t", filename="DIR/nowhere/at/all")
add(driver="qcow2", node_name="t", file=file("DIR/over.qcow2"), backing=3)
add(driver="qcow2", node_name="t", file=file("DIR/over.qcow2"), backing="zz")
both_refuse("qcow2", "blockdev-add", driver="qcow2", node_name="t",
            file=file("DIR/t.raw"))
both_refuse("regular file", "blockdev-add", driver="file", node_name="t", filename="DIR/dir")
both_refuse("lock", "blockdev-add", driver="qcow2", node_name="t",
            file=file("DIR/a.qcow2"))
both_refuse("lock", "blockdev-add", driver="qcow2", node_name="t", read_only=True,
            file=file("DIR/a.qcow2"))
# (What is below the image is in use, too.)
both_refuse("lock", "blockdev-add", driver="qcow2", node_name="t",
            file=file("DIR/top.qcow2"))
ours.refuses("absolute path", "blockdev-add", driver="file", node_name="t", filename="t.raw")
ours.refuses("control character", "blockdev-add", driver="file", node_name="t",
             filename="/tmp/\n")
ours.refuses("does not name", "blockdev-add", driver="qcow2", node_name="t",
             file=file(tmp + "/ours/t.qcow2"), backing="node1")
same("blockdev-del")
same("blockdev-del", node_name="zz")
same("blockdev-del", node_name="node0")
same("query-block-exports")

# Right ones.
def is_locked(name):
    return subprocess.run(["qemu-io", "-f", "qcow2", "-c", "quit", tmp + "/ours/" + name],
                          stderr=subprocess.DEVNULL).returncode != 0

ok("blockdev-add", driver="file", node_name="f", filename="DIR/t.qcow2", aio="threads",
   discard="unmap")
assert not is_locked("t.qcow2")
ok("blockdev-add", driver="qcow2", node_name="t", file="f", backing=None,
   detect_zeroes="unmap", discard="unmap", cache={"direct": False, "no-flush": False})
assert is_locked("t.qcow2")
both_refuse("lock", "blockdev-add", driver="qcow2", node_name="t2", file="f")
same("blockdev-del", node_name="f")
add(driver="qcow2", node_name="t", file=file("DIR/over.qcow2"))
ok("blockdev-add", driver="qcow2", node_name="over", file=file("DIR/over.qcow2"),
   read_only=True)
ok("blockdev-add", driver="raw", node_name="r", file=file("DIR/t.raw"))
ok("blockdev-add", driver="raw", node_name="own", file=file("DIR/a.qcow2"))

def nodes(c):
    """What both should say in the same way, of the nodes that both have."""
    keys = ("node-name", "drv", "ro", "file", "backing_file", "backing_file_depth",
            "encrypted", "write_threshold")
    image = ("format", "virtual-size", "filename", "cluster-size", "backing-filename",
             "format-specific")
    out = {}
    for n in c.get("query-named-block-nodes"):
        if n["node-name"] in ("t", "over", "r", "own", "node0"):
            one = {k: n[k] for k in keys if k in n}
            one["image"] = {k: n["image"][k] for k in image if k in n["image"]}
            one["below"] = n["image"].get("backing-image", {}).get("virtual-size")
            out[n["node-name"]] = one
    return out
# (How long the file itself is, f, differs.)
a = both.compare("nodes", nodes)
assert a["t"]["image"]["virtual-size"] == 8 << 20 and len(a) == 5

# An NBD export.
nbd = {"driver": "nbd", "node_name": "n", "export": "the-disk",
       "server": {"type": "unix", "path": sockdir + "/n.nbd"}}
ok("blockdev-add", **nbd)
add(**dict(nbd, node_name="n2", server={"type": "unix"}))
add(**dict(nbd, node_name="n2", server={"path": "/x"}))
add(**dict(nbd, node_name="n2", server={"type": "inet", "host": "h"}))
add(**dict(nbd, node_name="n2", server={"type": "other"}))
ok("blockdev-add", driver="raw", node_name="nr", file="n")
same("blockdev-del", node_name="n")
for name in "nr", "n", "t", "f", "over", "r", "own":
    ok("blockdev-del", node_name=name)
    same("blockdev-del", node_name=name)
assert not is_locked("t.qcow2")
assert not any(n["node-name"] not in ("node0", "node1")
               for n in ours.get("query-named-block-nodes"))

# A bounded number, and they go when the server ends.
for i in range(64):
    ours.get("blockdev-add", driver="file", node_name="f%d" % i,
             filename=tmp + "/ours/t.raw")
ours.refuses("64 nodes", "blockdev-add", driver="file", node_name="more",
             filename=tmp + "/ours/t.raw")
ours.get("blockdev-del", node_name="f7")
ours.refuses("64 nodes", "blockdev-add", driver="qcow2", node_name="t",
             file={"driver": "file", "filename": tmp + "/ours/t.qcow2"})
assert not is_locked("t.qcow2")
ours.get("blockdev-del", node_name="f8")
ours.get("blockdev-add", driver="qcow2", node_name="t",
         file={"driver": "file", "filename": tmp + "/ours/t.qcow2"})
assert both.count > 60, both.count
PY
stop_nbdkit
check_clean "$tmp/ours/t.qcow2"
