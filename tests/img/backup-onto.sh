#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With --onto, a backup is a raw file, or an NBD export, that shows the disk of the newest
# instant.  One that is killed while it is written says that it is incomplete, and the next
# backup, which is incremental, makes it whole.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -e trace=pwritev2 -e inject=pwritev2:signal=KILL:when=1 true
cd ours

make_image a.qcow2 8M
io a.qcow2 'write -P 1 0 3M'
head -c 9M /dev/urandom > device.raw
# shows_disk KIND: what is on the device, after a backup of that kind.
shows_disk ()
{
  grep "^a.qcow2: $1 backup " ../out
  qemu-img convert -f qcow2 -O raw a.qcow2 now.raw
  cmp -n 8388608 now.raw device.raw
  check_clean a.qcow2
}
backup ()
{
  img backup "$@" --onto device.raw a.qcow2 backups > ../out
}
backup
shows_disk full
io a.qcow2 'write -P 2 1M 64k' 'write -z 2M 1M'
backup --verify
shows_disk incremental
grep ': 64 KiB in ' ../out
img restore --list backups | grep '2 .* in place .*device.raw$'
img_refused 'device.raw: the disk is there itself' restore backups x.raw

for n in 1 3; do
  io a.qcow2 "write -P 3$n 512k 1M" 'write -P 4 5M 1M'
  if strace -f -qq -o /dev/null -e trace=pwritev2 -e inject=pwritev2:signal=KILL:when=$n \
    -P "$PWD/device.raw" "$IMG" backup --onto device.raw a.qcow2 backups; then
    fail "not killed"
  fi
  img restore --list backups | grep ' incomplete '
  img_refused 'device.raw: a backup was cut off there' restore backups x.raw
  io a.qcow2 'write -P 5 700k 64k'
  backup
  shows_disk incremental
done
[ "$(ls backups)" = manifest.json ]

img_refused 'the repository is for --onto .*device.raw' backup a.qcow2 backups
truncate -s 1M small.raw
img_refused 'small.raw: the disk has 1048576 bytes, fewer' backup --onto small.raw a.qcow2 \
  backups
img_refused 'without --keep' backup --keep 2 --onto device.raw a.qcow2 backups

# An export, of a disk in use.
start_nbdkit control="$sockdir/qmp" a.qcow2
for pattern in 7 8; do
  nbdsh_run -c "h.pwrite(b'$pattern' * 100000, 4000000); h.flush()"
  cat > steps <<SH
'$IMG' --control '$sockdir/qmp' backup --onto "\$(echo "\$uri" | sed s,//,//sesame@,)" disk onto-export > '$tmp/out'
SH
  rm -f "$sockdir/far.sock"
  "$NBDKIT" -U "$sockdir/far.sock" file device.raw --run '. ./steps'
done
stop_nbdkit
grep '^disk: incremental backup 2: 128 KiB in nbd+unix:' ../out
if grep -r sesame ../out onto-export; then fail "a secret is told"; fi
qemu-img convert -f qcow2 -O raw a.qcow2 now.raw
cmp -n 8388608 now.raw device.raw
