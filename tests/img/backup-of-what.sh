#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A backup of an image that is in the repository itself, in use or at rest, is refused, and
# changes nothing there; so is one of two disks whose repositories would be the same.  The name of
# an image is told without control characters.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
cd ours

make_image a.qcow2 8M
io a.qcow2 'write -P 1 0 1M'
for _ in 1 2; do img backup -q a.qcow2 backups; done
cp a.qcow2 backups/000009.qcow2
cp a.qcow2 backups/other.qcow2
ln -s backups/000001.qcow2 link.qcow2
before="$(sha256sum backups/*)"
for i in backups/000001.qcow2 backups/000002.qcow2 backups/000009.qcow2 backups/other.qcow2 \
  link.qcow2; do
  img_refused 'backups: the disk itself is there' backup "$i" backups
  start_nbdkit control="$sockdir/qmp" file="$i"
  img_refused 'backups: the disk itself is there' --control "$sockdir/qmp" backup disk backups
  stop_nbdkit
done
[ "$before" = "$(sha256sum backups/*)" ]

mkdir x y
cp a.qcow2 x/d.qcow2
cp a.qcow2 y/d.qcow2
img_refused 'x/d.qcow2 and y/d.qcow2 would have the same repository, rr/d.qcow2' backup \
  x/d.qcow2 y/d.qcow2 rr
[ ! -e rr ]

name="$(printf 'a\nb.qcow2')"
cp a.qcow2 "$name"
img backup "$name" new > ../out
[ "$(wc -l < ../out)" = 1 ]
grep '^a.*b.qcow2: full backup 1: ' ../out
