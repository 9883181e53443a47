#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The backup of a disk into the repository of another one: --keep removes nothing of that, however
# often it runs, until it is given together with --full.  A damaged chain goes as soon as
# enough newer backups do not need it.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
cd ours

make_image right.qcow2 8M
make_image wrong.qcow2 8M
for n in 1 2 3; do
  io right.qcow2 "write -P $n ${n}M 64k"
  img backup -q --keep 3 right.qcow2 backups
done
before="$(sha256sum backups/00000[123].*)"
qemu-img convert -f qcow2 -O raw right.qcow2 right.raw
for n in 4 5 6; do
  io wrong.qcow2 "write -P $n ${n}M 64k"
  img backup --keep 1 wrong.qcow2 backups 2> ../err
  grep 'nothing was removed, because older backups may be of another disk' ../err
done
[ "$before" = "$(sha256sum backups/00000[123].*)" ]
img restore -q -g 3 backups x.raw
cmp x.raw right.raw
img backup --full --keep 1 wrong.qcow2 backups | grep 'older backups removed: 6'
[ "$(ls backups)" = "000007.qcow2
manifest.json" ]

img backup -q wrong.qcow2 backups
img backup -q wrong.qcow2 backups
rm backups/000007.qcow2
img backup -q --full wrong.qcow2 backups
img backup wrong.qcow2 backups | grep incremental
img_refused '000007.qcow2: .*No such file' backup --keep 4 wrong.qcow2 backups
grep 'this backup is complete, but older ones were not merged' ../ours.out
img backup -q --keep 3 wrong.qcow2 backups
img restore --verify backups
