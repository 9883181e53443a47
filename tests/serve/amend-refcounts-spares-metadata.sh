#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# amend=true refcount-bits=N writes new refcounts past the last cluster that has one.  Where
# the image does not grow, as on a device or behind NBD, wrong refcounts may say that an L2
# table is past it.  Then the image is refused, and not a byte of it changes.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

PLUGIN=$(realpath "$PLUGIN")
export NBDKIT PLUGIN
cd "$tmp"

# The second L2 table and its data are the last clusters.
qemu-img create -q -f qcow2 -o cluster_size=4k disk.qcow2 8M
qemu-io -f qcow2 -c 'write -P 1 0 64k' -c 'write -P 2 4M 4k' disk.qcow2 > io.log
/usr/bin/python3 - disk.qcow2 <<'END'
import struct, sys

with open(sys.argv[1], "r+b") as f:
    image = f.read()

    def at(offset):
        return struct.unpack_from(">Q", image, offset)[0] & 0x00fffffffffffe00

    table = max(at(at(40) + 8 * i) for i in range(4)) // 4096
    f.seek(at(at(48)) + 2 * table)
    f.write(bytes(2 * (len(image) // 4096 - table)))
    f.truncate(len(image) + (1 << 20))
END
cp disk.qcow2 before.qcow2
# shellcheck disable=SC2016
if "$NBDKIT" -U - file disk.qcow2 --run '
  "$NBDKIT" -r -U - "$PLUGIN" "$uri" lock=false amend=true refcount-bits=64 --run true' \
    2> err.log; then
  echo "not refused"
  exit 1
fi
cat err.log
grep -q 'the L2 table at .* is in use but its reference count is 0' err.log
cmp disk.qcow2 before.qcow2
