#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Cloud Hypervisor, issue 8606: 118 of 200 L2 tables overwritten, and nobody noticed.
#
# The allocator had L2 tables that were in use on its list of free clusters, and gave them
# to refcount blocks and to guest data.  Neither the server nor the guest was told.
#
# Here an image says so itself: the refcounts of its L2 tables are 0.
#
# https://github.com/cloud-hypervisor/cloud-hypervisor/issues/8606
# Broken: allocator-knows-no-metadata

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 32M cluster_size=4k
random_file "$tmp/data.raw" $((8 << 20))
qemu-io -f qcow2 -c "write -s $tmp/data.raw 0 8M" "$img" > /dev/null
# Each table and its refcount: 0.
"$python" - "$img" <<'PY'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    h = f.read(72)
    n, l1, rt = struct.unpack_from(">I", h, 36)[0], *struct.unpack_from(">QQ", h, 40)
    f.seek(l1)
    tables = [t & 0xfffffffffffe00 for t in struct.unpack(">%dQ" % n, f.read(8 * n))]
    f.seek(rt)
    block, = struct.unpack(">Q", f.read(8))
    for t in filter(None, tables):
        assert t // 4096 < 2048
        f.seek(block + t // 4096 * 2)
        f.write(bytes(2))
PY

start_nbdkit file="$img"
nbdsh_run -c - <<'PY' || :
try:
    # One cluster at a time: they find each free one.
    for i in range(64):
        h.pwrite(b"x" * 4096, (8 << 20) + i * 4096)
    h.flush()
except nbd.Error as e:
    print(e)
PY
# Served, or refused: but what was there is there.
nbdcopy "$uri" "$tmp/out.raw"
cmp -n $((8 << 20)) "$tmp/out.raw" "$tmp/data.raw"
kill9_nbdkit main
qemu-img convert -f qcow2 -O raw "$img" "$tmp/out.raw"
cmp -n $((8 << 20)) "$tmp/out.raw" "$tmp/data.raw"

start_nbdkit file="$img" untrusted=true
nbdcopy "$uri" "$tmp/out.raw"
cmp -n $((8 << 20)) "$tmp/out.raw" "$tmp/data.raw"
stop_nbdkit
