#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What Packer has built is compressed, compared and validated.
#
# Debian has no Packer.  The test makes an image of the same kind, in the same place: the
# recipe was tried once with what Packer 1.11, with the builder of 1.7.2, had built.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires sfdisk --version
. "$srcdir/lib/recipes.sh"

before ()
{
  truncate -s 64M disk.raw
  printf '%s\n' 'label: gpt' 'start=1MiB, size=62MiB, type=linux' | sfdisk -q disk.raw
  mkdir files
  seq 500000 > files/numbers
  mke2fs -q -t ext4 -E offset=$((1 << 20)) -d files disk.raw 62M
  mkdir output-vm
  qemu-img convert -f raw -O qcow2 disk.raw output-vm/packer-vm
}

after ()
{
  check_clean vm.qcow2
  same vm.qcow2 disk.raw
  [ "$(file_size vm.qcow2)" -lt 2097152 ]
  grep 'Images are identical' out
  grep 'ok .*filesystem' out
}

recipe "Images that Packer builds"
