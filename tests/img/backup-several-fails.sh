#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The first backup of several disks fails at the second one: nothing is left of either
# repository, and the next one succeeds.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -e trace=linkat -e inject=linkat:error=ENOSPC:when=1 true
cd ours

for i in a b; do
  make_image $i.qcow2 8M
  io $i.qcow2 'write -P 1 0 1M'
done
# The manifests come first, and then the files of the generations.
mkdir backups
if strace -f -qq -o /dev/null -e trace=linkat -e inject=linkat:error=ENOSPC:when=4 \
  "$IMG" backup -q a.qcow2 b.qcow2 backups; then
  fail "it did not fail"
fi
[ -z "$(ls -A backups)" ]
img backup -q a.qcow2 b.qcow2 backups
for i in a b; do
  img restore -q "backups/$i.qcow2" x.raw
  qemu-img compare -f qcow2 -F raw $i.qcow2 x.raw
done
