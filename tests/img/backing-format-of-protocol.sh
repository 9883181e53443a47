#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Where an image states a driver for files or devices as the format of its backing file, that is
# a raw disk, as for qemu-img, if the driver is for what is there.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires losetup --version

truncate -s 1M base.raw
dev="$(losetup --find --show "$PWD/base.raw")" || skip "no loop device can be had"
# It goes when the last process that has it open ends.
exec {fd}< "$dev"
losetup --detach "$dev"
printf 'base' > base.raw
truncate -s 1M base.raw

# over NAME FORMAT: an image over that file.
over ()
{
  in_both make_image over.qcow2 1M
  in_both qemu-io -f qcow2 -c 'write -P 1 64k 64k' over.qcow2
  in_both qemu-img rebase -u -f qcow2 -b "$1" -F "$2" over.qcow2
}
json='json:{"driver":"host_device","filename":"'"$dev"'"}'
for pair in "$dev host_device" "$json host_device" "$PWD/base.raw file"; do
  over "${pair% *}" "${pair##* }"
  both convert -f qcow2 -O raw over.qcow2 over.raw
  [ "$(head -c 4 ours/over.raw)" = base ]
  cmp theirs/over.raw ours/over.raw
done
for pair in "$dev file" "$PWD/base.raw host_device" "$PWD/base.raw host_cdrom"; do
  over "${pair% *}" "${pair##* }"
  both_status convert -f qcow2 -O raw over.qcow2 new.raw
  [ "$status" = 1 ]
  grep "has format \"${pair##* }\", which is not supported" ours.err
done
# Written to, too.
over "$PWD/base.raw" file
both_status commit over.qcow2
[ "$status" = 0 ]
over "$dev" host_device
cp base.raw model.raw
head -c 64k /dev/zero | tr '\0' '\1' | dd of=model.raw bs=64k seek=1 conv=notrunc status=none
(cd ours && img commit -q over.qcow2)
cmp base.raw model.raw
exec {fd}<&-
