#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With --onto, a target that looks like an image is not replaced by a raw disk without --full;
# and the image of the disk, or a file below it, never: not under its own name, and not behind a
# loop device or another device node, in use or at rest.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires losetup --version
cd ours

make_image a.qcow2 8M
make_image other.qcow2 8M
io other.qcow2 'write -P 9 0 8M'
truncate -s 9M other.qcow2
before="$(sha256sum other.qcow2)"
img_refused 'other.qcow2 looks like a qcow2 image.*--full' backup --onto other.qcow2 a.qcow2 r
[ "$before" = "$(sha256sum other.qcow2)" ]
[ ! -e r ]
img backup --full --onto other.qcow2 a.qcow2 r
qemu-img convert -f qcow2 -O raw a.qcow2 was.raw
cmp -n 8388608 was.raw other.qcow2

head -c 8M /dev/urandom > base.raw
make_image over.qcow2 8M backing_file=base.raw,backing_fmt=raw
io over.qcow2 'write -P 1 0 8M'
devices=()
# The last one is a loop device over a loop device.
for i in "$PWD/over.qcow2" "$PWD/base.raw" dev; do
  [ "$i" != dev ] || i="$dev"
  dev="$(losetup --find --show "$i")" || skip "no loop device can be had"
  # It goes when the last process that has it open ends.
  # shellcheck disable=SC2034
  exec {fd}< "$dev"
  losetup --detach "$dev"
  devices+=("$dev")
done
mknod node b "$((16#$(stat -L -c %t "$dev")))" "$((16#$(stat -L -c %T "$dev")))" ||
  skip "no device node can be made"
before="$(sha256sum base.raw)"
qemu-img convert -f qcow2 -O raw over.qcow2 was.raw
# refused_all [OPTION...] DISK
refused_all ()
{
  for i in "${devices[@]}" "$PWD/node"; do
    img_refused "$i is the disk itself, or a file of it" "${@:1:$#-1}" backup --full \
      --onto "$i" "${@: -1}" r2
  done
}
# intact: the image and what is below it.
intact ()
{
  check_clean over.qcow2
  [ "$before" = "$(sha256sum base.raw)" ]
  qemu-img compare -f qcow2 -F raw over.qcow2 was.raw
}
refused_all over.qcow2
intact
start_nbdkit control="$sockdir/qmp" over.qcow2
refused_all --control "$sockdir/qmp" disk
stop_nbdkit
intact
