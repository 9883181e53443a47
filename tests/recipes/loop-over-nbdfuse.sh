#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With nbdfuse and a loop device, the filesystem of an image can be mounted and written.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires nbdfuse --version
[ -w /dev/fuse ] || skip "no /dev/fuse"
requires losetup --find
requires_namespace
. "$srcdir/lib/recipes.sh"

before ()
{
  truncate -s 32M disk.raw
  mke2fs -q -t ext4 disk.raw
  qemu-img convert -f raw -O qcow2 disk.raw disk.qcow2
}

after ()
{
  grep 'No errors were found' out
  check_clean disk.qcow2
  qemu-img convert -f qcow2 -O raw disk.qcow2 now.raw
  e2fsck -fn now.raw
  [ "$(debugfs -R 'cat greeting' now.raw)" = hello ]
}

recipe "Files in an image, with nbdfuse and a loop device"
