#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# guestfish changes a file on our disk.
#
# Not a part of make check: guestfish and a kernel for its appliance are 150 MB, and without
# KVM it takes minutes.  (make check TESTS=recipes/guestfish.sh)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires guestfish --version
[ -n "$(find /boot -name 'vmlinuz-*' -readable)" ] || skip "no kernel for it in /boot"
requires sfdisk --version
. "$srcdir/lib/recipes.sh"
export LIBGUESTFS_BACKEND=direct

before ()
{
  truncate -s 64M machine.raw
  echo 'start=1MiB, type=83' | sfdisk -q machine.raw
  mke2fs -q -t ext4 -E offset=$((1 << 20)) machine.raw 60M
  qemu-img convert -f raw -O qcow2 machine.raw disk.qcow2
}

after ()
{
  grep 'from guestfish' out
  check_clean disk.qcow2
  qemu-img convert -f qcow2 -O raw disk.qcow2 now.raw
  [ "$(debugfs -R 'cat hello' "now.raw?offset=$((1 << 20))")" = 'from guestfish' ]
}

recipe "Files in an image, with guestfish"
