#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A disk that changes its size loses marks of what has changed.  So an incremental backup that
# was cut off before does not go on, but begins anew, and its generation is right.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -o /dev/null -e trace=fsync -e inject=fsync:signal=KILL:when=2 true

for sizes in 60M '8M 48M'; do
  qemu-img create -q -f qcow2 a.qcow2 48M
  img backup -q a.qcow2 backups
  qemu-io -f qcow2 -c 'write -P 1 0 48M' a.qcow2
  # When the manifest has just got to know of the part.
  strace -f -qq -o /dev/null -e trace=fsync -e inject=fsync:signal=KILL:when=2 \
    "$IMG" backup -q -r 4M a.qcow2 backups || :
  grep '"done": [1-9]' backups/manifest.json
  for size in $sizes; do
    img resize -q --shrink a.qcow2 "$size"
  done
  img backup -q a.qcow2 backups 2> err
  grep 'which was cut off, cannot go on: the disk had another size meanwhile' err
  img restore backups restored.raw
  qemu-img compare -f qcow2 -F raw a.qcow2 restored.raw
  rm -r a.qcow2 backups restored.raw
done
