#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# External snapshots of a disk in use: blockdev-snapshot-sync puts one image after the other
# on top while clients write.  Each image below shows the instant, and others may read it,
# but not write it; names of nodes stay with their files.  After kill -9 all that was flushed
# is in the last image.  What cannot become the top is refused in QEMU's words, or in a
# clear line, and changes nothing.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

d="$tmp/images"
mkdir "$d"
make_image "$d/base.qcow2" 8M
qemu-io -f qcow2 -c 'write -P 5 0 8M' "$d/base.qcow2"
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$d/a.qcow2"
qemu-img create -q -f qcow2 -u -b a.qcow2 -F qcow2 "$d/short.qcow2" 4M
make_image "$d/alone.qcow2" 8M
qemu-img convert -f qcow2 -O raw "$d/a.qcow2" "$d/model.raw"
start_nbdkit control="$sockdir/qmp" "$d/a.qcow2"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$uri" "$d" <<'PY'
import os
import subprocess
import sys
from qmp import Client, Writers

c = Client(sys.argv[1])
uri, d = sys.argv[2:4]

def write_during(action):
    """Clients write while something happens."""
    writers.start()
    action()
    writers.rest()

def shown(name):
    """What qemu-img reads; it needs the lock of a reader."""
    raw = d + "/shown.raw"
    subprocess.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", d + "/" + name, raw],
                   check=True)
    with open(raw, "rb") as f:
        return f.read()

def is_locked(name):
    return subprocess.run(["qemu-io", "-f", "qcow2", "-c", "quit", d + "/" + name],
                          stderr=subprocess.DEVNULL).returncode != 0

def files():
    return sorted(os.listdir(d))

def snapshot(name, **more):
    return dict({"snapshot_file": d + "/" + name}, **more)

writers = Writers(uri, d + "/model.raw")
write_during(lambda: c.get("blockdev-snapshot-sync", device="disk", **snapshot("b.qcow2")))
instant = bytes(writers.model)
c.get("blockdev-snapshot-sync", **snapshot("c.qcow2", node_name="node2",
                                           snapshot_node_name="new"))
write_during(lambda: c.get("query-block"))
assert shown("b.qcow2") == instant
assert is_locked("b.qcow2") and is_locked("c.qcow2")
names = [(n["node-name"], os.path.basename(n["file"]))
         for n in c.get("query-named-block-nodes")]
assert names == [("new", "c.qcow2"), ("node2", "b.qcow2"), ("node0", "a.qcow2"),
                 ("node1", "base.qcow2")], names

# The image is there already.
subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=4k",
                "-b", "c.qcow2", "-F", "qcow2", "-u", d + "/d.qcow2", "8M"], check=True)
c.get("blockdev-snapshot-sync", device="disk", mode="existing", **snapshot("d.qcow2"))
write_during(lambda: c.get("block-dirty-bitmap-add", node="disk", name="b",
                              persistent=True))

# What is not possible.
before = files()
def refuses(text, **arguments):
    c.refuses(text, "blockdev-snapshot-sync", **arguments)
    assert files() == before
refuses("Cannot find device='x' nor node-name=''", device="x", **snapshot("n.qcow2"))
refuses("Cannot find device='' nor node-name='x'", node_name="x", **snapshot("n.qcow2"))
refuses("New overlay node-name missing", node_name="node4", **snapshot("n.qcow2"))
refuses("already in use", device="disk", **snapshot("n.qcow2", snapshot_node_name="new"))
refuses("Invalid node-name", device="disk", **snapshot("n.qcow2", snapshot_node_name="0/"))
refuses("not the top", node_name="node2", **snapshot("n.qcow2", snapshot_node_name="n"))
refuses("Parameter 'mode' does not accept value 'other'", device="disk", **snapshot("n.qcow2", mode="other"))
refuses("'raw' is not possible", device="disk", **snapshot("n.raw", format="raw"))
refuses("absolute path", device="disk", snapshot_file="n.qcow2")
refuses("control character", device="disk", **snapshot("n\n.qcow2"))
refuses("the file exists already", device="disk", **snapshot("alone.qcow2"))
refuses("No such file", device="disk", **snapshot("no/n.qcow2"))
refuses("another size", device="disk", **snapshot("short.qcow2", mode="existing"))
refuses("does not name", device="disk", **snapshot("alone.qcow2", mode="existing"))
refuses("data of its own", device="disk", **snapshot("c.qcow2", mode="existing"))
refuses("lock", device="disk", **snapshot("d.qcow2", mode="existing"))

write_during(lambda: c.get("query-block"))
writers.end()
PY

kill9_nbdkit
for image in base a b c; do check_clean "$d/$image.qcow2"; done
start_nbdkit "$d/d.qcow2"
nbdsh_run -c 'h.pwrite(h.pread(1, 0), 0)'
stop_nbdkit
check_clean "$d/d.qcow2"
qemu-img compare -f qcow2 -F raw "$d/d.qcow2" "$d/model.raw"
qemu-img info -f qcow2 "$d/d.qcow2" | grep -q 'name: b'

# Encrypted disks.
printf secret > "$tmp/secret"
qemu-img create -q -f qcow2 --object secret,id=s,file="$tmp/secret" \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 "$d/e.qcow2" 1M
refused ()
{
  PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$1" "$d/n.qcow2" "$2" <<'PY'
import sys
from qmp import Client
Client(sys.argv[1]).refuses(sys.argv[4], "blockdev-snapshot-sync", device=sys.argv[2],
                            snapshot_file=sys.argv[3])
PY
  [ ! -e "$d/n.qcow2" ]
  stop_nbdkit
}
start_nbdkit control="$sockdir/qmp" passphrase="+$tmp/secret" "$d/e.qcow2"
refused disk 'is encrypted'
