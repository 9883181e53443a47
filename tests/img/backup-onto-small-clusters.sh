#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With clusters that are smaller than a block of which the manifest has a checksum, a block can
# be data in part, and of the rest, which the disk has lost when it was smaller, zeros are
# written.  A backup in place has the checksum of that, although the manifest says meanwhile how
# much is done: the next backup does not refuse the target.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
cd ours

same ()
{
  qemu-img convert -f qcow2 -O raw a.qcow2 now.raw
  cmp -n 8388608 now.raw device.raw
}

make_image a.qcow2 8M cluster_size=512
io a.qcow2 'write -P 1 0 8M'
truncate -s 9M device.raw
img backup -q --onto device.raw a.qcow2 backups
qemu-img resize -q -f qcow2 --shrink a.qcow2 $((2 * 1048576 + 1024))
qemu-img resize -q -f qcow2 a.qcow2 8M
io a.qcow2 'write -P 2 0 1M' 'write -P 3 6M 2M'
# (So that it takes longer than the time after which the manifest says what is done.)
img backup -q -r 300k --onto device.raw a.qcow2 backups
same
io a.qcow2 'write -P 4 100k 64k'
img backup --onto device.raw a.qcow2 backups | grep 'incremental backup'
same
