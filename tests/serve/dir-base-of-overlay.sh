#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# In a directory, an image and the image that lies over it cannot be in use at the same time,
# if one of them is written: the second one is refused, the log says why, and the data of the
# first one stays as it was.  One after the other, both can be written.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

d="$tmp/d"
mkdir "$d"
make_image "$d/base.qcow2" 16M
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$d/over.qcow2"
start_nbdkit dir="$d"

PYTHONPATH="$srcdir/lib" "$python" - "$sock" "$tmp/main.log" <<'PY'
import sys
import nbd
from qmp import connect

sock, log = sys.argv[1:]

def alone(name, other, byte):
    h = connect(sock, name)
    h.pwrite(byte * 65536, 0)
    with open(log) as f:
        f.seek(0, 2)
        try:
            connect(sock, other)
            raise SystemExit("%s was opened beside %s" % (other, name))
        except nbd.Error:
            assert "the file would be read and written at the same time" in f.read()
    assert h.pread(65536, 0) == byte * 65536
    h.shutdown()
    while True:                         # until the server has seen that, too
        try:
            connect(sock, other).shutdown()
            return
        except nbd.Error:
            pass

alone("base.qcow2", "over.qcow2", b"\5")
alone("over.qcow2", "base.qcow2", b"\6")
PY
stop_nbdkit
qemu-io -r -f qcow2 -c 'read -P 5 0 64K' "$d/base.qcow2"
qemu-io -r -f qcow2 -c 'read -P 6 0 64K' "$d/over.qcow2"
check_clean "$d/base.qcow2"
check_clean "$d/over.qcow2"
