#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What mkosi or Packer have built is compressed, compared and validated.  mkosi itself is
# not run: it downloads a distribution.  The test makes a disk of the same kind.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires sfdisk --version
. "$srcdir/lib/recipes.sh"

mkosi='mkosi --distribution debian --release bookworm --format gpt_ext4 --output disk.raw'
not_run "$mkosi" "downloads a distribution"

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
  for image in small.qcow2 vm.qcow2; do
    check_clean $image
    same $image disk.raw
    [ "$(file_size $image)" -lt 2097152 ]
  done
  grep 'ok .*filesystem' out
}

recipe "Images that mkosi or Packer have built"
