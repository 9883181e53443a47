#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With --onto, an incremental backup is refused if the target is not what the last one has left:
# another disk, an older copy of this one, or one that was written to; also if that one was cut
# off.  It stays as it was, and --full replaces it.  So is any backup onto the disk itself,
# whatever its address, and onto files of the image.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -e trace=pwritev2 -e inject=pwritev2:signal=KILL:when=1 true
cd ours

make_image a.qcow2 8M
io a.qcow2 'write -P 1 0 3M'
backup ()
{
  img backup "$@" --onto device.raw a.qcow2 backups
}
# same: the device is the disk.
same ()
{
  qemu-img convert -f qcow2 -O raw a.qcow2 now.raw
  cmp -n 8388608 now.raw device.raw
}
# What stays.  (In the image, the bitmaps of a backup that was cut off may become one.)
state ()
{
  sha256sum device.raw
  grep -v '"bitmap": ' backups/manifest.json
}
# refused FILE: in place of the device; then the right one is there again.
refused ()
{
  local before
  mv device.raw right.raw
  cp "$1" device.raw
  before="$(state)"
  img_refused 'device.raw: at offset [0-9]* is not what the last backup has left there' \
    backup --onto device.raw a.qcow2 backups
  [ "$before" = "$(state)" ]
  mv right.raw device.raw
}

truncate -s 9M device.raw
backup
cp device.raw older.raw
io a.qcow2 'write -P 2 4M 64k'
backup | grep 'incremental backup 2'
truncate -s 9M empty.raw
head -c 9M /dev/urandom > other.raw
cp device.raw written.raw
printf '%1000000s' x | dd of=written.raw bs=64k seek=16 conv=notrunc status=none
for i in empty other older written; do refused $i.raw; done

# One that was cut off; what it had to write may be anything.
io a.qcow2 'write -P 3 1M 64k' 'write -P 4 5M 1M'
if strace -f -qq -o /dev/null -e trace=pwritev2 -e inject=pwritev2:signal=KILL:when=2 \
  -P "$PWD/device.raw" "$IMG" backup --onto device.raw a.qcow2 backups; then
  fail "not killed"
fi
for i in empty other; do refused $i.raw; done
backup | grep incremental
same
mv other.raw device.raw
backup --full | grep 'full backup'
same
backup | grep 'incremental backup .*: 0 B'
same

# The image, and what is below it.
head -c 8M /dev/urandom > base.raw
make_image over.qcow2 8M backing_file=base.raw,backing_fmt=raw
before="$(sha256sum base.raw)"
img_refused 'a.qcow2: .*lock' backup --onto a.qcow2 a.qcow2 itself
img_refused 'base.raw: .*lock' backup --onto base.raw over.qcow2 itself
[ "$before" = "$(sha256sum base.raw)" ]
[ ! -e itself ]
check_clean a.qcow2
same

# The disk, while a server uses it.
start_nbdkit control="$sockdir/qmp" a.qcow2
ln -s "$sock" "$sockdir/link"
for socket in "$sock" "$sockdir/link"; do
  img_refused "--onto: nbd.unix:.* is the disk itself" --control "$sockdir/qmp" backup \
    --onto "nbd+unix:///?socket=$socket" disk itself
done
stop_nbdkit
check_clean a.qcow2
same

# Another disk of the same server is none.
mkdir dir
make_image dir/a 1M
make_image dir/b 1M
start_nbdkit control="$sockdir/qmp" dir="$PWD/dir"
img_refused 'is the disk itself' --control "$sockdir/qmp" backup \
  --onto "nbd+unix:///a?socket=$sock" a onto-b
uri="nbd+unix:///a?socket=$sock" nbdsh_run -c 'h.pwrite(b"x" * 5000, 70000)'
img --control "$sockdir/qmp" backup --onto "nbd+unix:///b?socket=$sock" a onto-b
stop_nbdkit
qemu-img compare -f qcow2 -F qcow2 dir/a dir/b
