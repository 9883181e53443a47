#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# amend -o refcount_bits=N writes new refcounts past the last cluster that has one.  Where
# the image does not grow, as on a device or behind NBD, wrong refcounts may say that an L2
# table is past it.  Then the image is refused, and not a byte of it changes.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

cd ours

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
PLUGIN="file" start_nbdkit disk.qcow2
img_untouched disk.qcow2 'the L2 table at .* is in use but its reference count is 0' \
  amend -o refcount_bits=64 "$uri"
