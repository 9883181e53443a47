#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A backing file is moved while the disk over it is written: change-backing-file has the
# header name its new place, the disk goes on, and the next server finds it there.  Names
# that lead to the image itself are refused.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$tmp/base.qcow2" 8M
qemu-io -f qcow2 -c 'write -P 5 0 8M' "$tmp/base.qcow2"
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$img"
qemu-img create -q -f qcow2 -b a.qcow2 -F qcow2 "$tmp/over.qcow2"
ln -s over.qcow2 "$tmp/link"
mkdir "$tmp/moved"
start_nbdkit control="$sockdir/qmp" "$img"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$uri" "$tmp" <<'PY'
import os
import sys
import nbd
from qmp import Client

c = Client(sys.argv[1])
h = nbd.NBD()
h.connect_uri(sys.argv[2])
tmp = sys.argv[3]

def change(node, name):
    return dict(device="disk", image_node_name=node, backing_file=name)

h.pwrite(b"a" * 512, 0)
os.rename(tmp + "/base.qcow2", tmp + "/moved/base.qcow2")
c.get("change-backing-file", **change("node0", "moved/base.qcow2"))
h.pwrite(b"b" * 512, 1 << 20)
assert h.pread(1024, 1 << 20) == b"b" * 512 + b"\5" * 512
c.refuses("is read-only", "change-backing-file", **change("node1", "x"))
for bad in "x\n", "\1", "y\x7f":
    c.refuses("control character", "change-backing-file", **change("node0", bad))
for loop in "a.qcow2", tmp + "/a.qcow2", "./moved/../a.qcow2", "over.qcow2", "link":
    c.refuses("the image cannot be its own backing file", "change-backing-file",
              **change("node0", loop))
node = c.node()
assert node["image"]["backing-filename"] == "moved/base.qcow2"
assert node["image"]["backing-filename-format"] == "qcow2"
h.pwrite(b"c" * 512, 2 << 20)
h.flush()
PY
kill9_nbdkit
start_nbdkit "$img"
nbdsh_run -c '
assert h.pread(512, 0) == b"a" * 512
assert h.pread(1024, 1 << 20) == b"b" * 512 + b"\5" * 512
assert h.pread(1024, 2 << 20) == b"c" * 512 + b"\5" * 512
h.pwrite(b"d", 0)'
stop_nbdkit
qemu-img check "$img"

# There is nothing to be renamed.
start_nbdkit control="$sockdir/qmp" "$tmp/moved/base.qcow2"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" <<'PY'
import sys
from qmp import Client
Client(sys.argv[1]).refuses("an image without a backing file", "change-backing-file",
                            device="disk", image_node_name="node0", backing_file="x")
PY
stop_nbdkit
