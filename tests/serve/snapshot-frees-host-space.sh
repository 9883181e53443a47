#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A snapshot is deleted while a client writes: all space that only the snapshot used is
# given back to the host with the answer, even if it lies in more pieces than the memory of
# the server has place for.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# Can this file system punch holes of 4K at all?
dd if=/dev/urandom of="$tmp/probe" bs=64k count=16 status=none
requires fallocate -p -o 4096 -l 4096 "$tmp/probe"
sync "$tmp/probe"
[ "$(allocated_kib "$tmp/probe")" -lt 1024 ] || skip "no holes of 4K on this file system"

img="$tmp/a.qcow2"
qemu-img create -q -f qcow2 -o cluster_size=4k "$img" 256M
start_nbdkit control="$sockdir/qmp" l2-cache=1M "$img"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" "$img" <<'PY'
import os
import sys
import threading
import qmp

c = qmp.Client(sys.argv[1])
h = qmp.connect(sys.argv[2])
MB = 1 << 20

def allocated():
    return os.stat(sys.argv[3]).st_blocks * 512

for offset in range(0, 256 * MB, MB):
    h.pwrite(b"a" * MB, offset)
h.flush()
full = allocated()
c.get("blockdev-snapshot-internal-sync", device="disk", name="s")
# Every second cluster.
for offset in range(0, 256 * MB, 8192):
    h.pwrite(b"b" * 4096, offset)
h.flush()
assert allocated() > full + 120 * MB

ends = False
def write():
    w = qmp.connect(sys.argv[2])
    while not ends:
        w.pwrite(b"w" * 512, 0)
writer = threading.Thread(target=write)
writer.start()
c.get("blockdev-snapshot-delete-internal-sync", device="disk", name="s")
ends = True
writer.join()
assert allocated() < full + 4 * MB, (full, allocated())

# The holes are in the right places.
h.pwrite(b"b" * 512, 0)
for offset in range(0, 256 * MB, MB):
    assert h.pread(MB, offset) == (b"b" * 4096 + b"a" * 4096) * 128, offset
PY
stop_nbdkit
check_clean "$img"
