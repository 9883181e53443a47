#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If a header says twice which format the backing file has, the last one counts, as in QEMU;
# and a new backing file has the format that rebase says.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

cd "$tmp"
qemu-img create -q -f qcow2 base.qcow2 1M
qemu-io -f qcow2 -c 'write -P 5 0 1M' base.qcow2
qemu-img create -q -f raw zeros.raw 1M
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 over.qcow2
"$python" - <<'END'
import struct
with open("over.qcow2", "r+b") as f:
    head = f.read(65536)
    at, size = struct.unpack(">QI", head[8:20])
    name, begin = head[at:at + size], struct.unpack(">I", head[100:104])[0]
    # First the wrong one.
    one = struct.pack(">II3s5x", 0xe2792aca, 3, b"raw")
    head = head[:8] + struct.pack(">Q", at + len(one)) + head[16:begin] + one + \
        head[begin:at] + name
    f.seek(0)
    f.write(head)
END
qemu-img compare -f qcow2 -F qcow2 over.qcow2 base.qcow2
"$NBDKIT" -U - "$PLUGIN" over.qcow2 --run 'qemu-img compare -f raw -F qcow2 "$uri" base.qcow2'

"$abs_top_builddir/img/nbdkit-qcow2-img" rebase -u -b zeros.raw -F raw over.qcow2
qemu-img compare -f qcow2 -F raw over.qcow2 zeros.raw
"$NBDKIT" -U - "$PLUGIN" over.qcow2 --run 'qemu-img compare -f raw -F raw "$uri" zeros.raw'
