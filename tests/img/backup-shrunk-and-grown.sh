#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A disk that became smaller and larger again between two backups, and was written to there:
# the incremental backup shows what the disk does, not what it has lost.  Clusters of all
# sizes, and ends within a cluster; also with preallocated space, which is data.  What QEMU
# has preallocated no bitmap knows: --verify finds that, and tells of --full.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

for cluster in 512 4k 64k 128k 2M; do
  for smaller in 8M 5M 544k 545k; do
    rm -rf d.qcow2 repo
    qemu-img create -q -f qcow2 -o cluster_size=$cluster d.qcow2 16M
    qemu-io -f qcow2 -c 'write -P 0xaa 0 16M' d.qcow2
    img backup -q d.qcow2 repo
    img resize -q --shrink d.qcow2 $smaller
    img resize -q d.qcow2 16M
    qemu-io -f qcow2 -c 'write -P 0xbb 9M 4k' -c 'write -P 0xbc 600k 512' d.qcow2
    img backup d.qcow2 repo > said
    grep incremental said
    rm -f o.raw
    img restore -q repo o.raw
    qemu-img compare -f qcow2 -F raw d.qcow2 o.raw || fail "$cluster $smaller"
    rm -f o.raw
  done
done

# grown PROGRAM: with preallocation, after an interval in which the disk was smaller.
grown ()
{
  rm -rf d.qcow2 repo o.raw
  qemu-img create -q -f qcow2 -o "cluster_size=$cluster" d.qcow2 16M
  qemu-io -f qcow2 -c 'write -P 0xaa 0 16M' d.qcow2
  img backup -q d.qcow2 repo
  "$1" resize -q -f qcow2 --shrink d.qcow2 "$smaller"
  "$1" resize -q -f qcow2 --preallocation="$how" d.qcow2 16M
}
for how in metadata falloc full; do
  for row in 512:5M 64k:545k 2M:8M; do
    IFS=: read -r cluster smaller <<< "$row"
    grown img
    img backup d.qcow2 repo | grep incremental
    img restore -q repo o.raw
    qemu-img compare -f qcow2 -F raw d.qcow2 o.raw || fail "$how $row"
    check_clean d.qcow2
  done
done
grown qemu-img
if img backup --verify d.qcow2 repo 2> said; then
  fail "the difference was not found"
fi
grep 'not what the disk shows: .*--full' said
img backup --full -q d.qcow2 repo
img restore -q repo o.raw
qemu-img compare -f qcow2 -F raw d.qcow2 o.raw
