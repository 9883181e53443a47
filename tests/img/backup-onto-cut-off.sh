#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A backup with --onto that was cut off has left a mixture.  The next one does not go on from it
# as if only the disk had changed: it is a full one if that was a full one, or if the image is
# an older copy by now, or lacks one of the two bitmaps; several in a row that were cut off are
# continued.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -e trace=pwritev2 -e inject=pwritev2:signal=KILL:when=1 true
cd ours

backup ()
{
  img backup --onto device.raw a.qcow2 backups
}
# cut_off [OPTION...]: is killed while it writes.
cut_off ()
{
  if strace -f -qq -o /dev/null -e trace=pwritev2 -e inject=pwritev2:signal=KILL:when=2 \
    -P "$PWD/device.raw" "$IMG" backup "$@" --onto device.raw a.qcow2 backups; then
    fail "not killed"
  fi
  img restore --list backups | grep ' incomplete '
}
# same KIND
same ()
{
  backup > ../out
  grep "$1" ../out
  qemu-img convert -f qcow2 -O raw a.qcow2 now.raw
  cmp -n 8388608 now.raw device.raw
  check_clean a.qcow2
  [ "$(qemu-img info a.qcow2 | grep -c 'name: backup-')" = 1 ]
}

make_image a.qcow2 8M
io a.qcow2 'write -P 1 0 8M'
truncate -s 9M device.raw
backup

# A full one.  The device is another one that has all that was known, so that only what was
# copied tells.
io a.qcow2 'write -P 2 1M 64k'
cut_off --full
printf x | dd of=device.raw bs=1 seek=5000000 conv=notrunc status=none
same 'full backup .*a full backup was cut off'

# Incremental ones, in a row.
for n in 1 2 3; do
  io a.qcow2 "write -P 1$n 512k 1M" "write -P 2$n $((n + 2))M 1M"
  cut_off
done
same "incremental backup"

# An older copy of the image, which does not know what was written.
cp a.qcow2 older.qcow2
io a.qcow2 'write -P 31 1M 2M' 'write -P 32 5M 2M'
cut_off
cp older.qcow2 a.qcow2
same 'full backup .*does not have the bitmap'

# The one before does not record, but it knows what is not yet copied.
io a.qcow2 'write -P 41 1M 2M' 'write -P 42 5M 2M'
cut_off
qemu-img bitmap --remove a.qcow2 \
  "$("$python" -c 'import json; print(json.load(open("backups/manifest.json"))["generations"][0]["bitmap"])')"
same 'full backup .*does not have the bitmap'

# The next one, which tidies, is killed when it replaces the manifest.
for n in 1 2; do
  io a.qcow2 "write -P 5$n 1M 2M" 'write -P 53 5M 2M'
  cut_off
  if strace -f -qq -o /dev/null -e trace=renameat -e inject=renameat:signal=KILL:when=$n \
    "$IMG" backup -q --onto device.raw a.qcow2 backups; then
    fail "not killed"
  fi
  same "incremental backup"
done

# The same in use.
start_nbdkit control="$sockdir/qmp" a.qcow2
for n in 1 2; do
  nbdsh_run -c "h.pwrite(b'$n' * 2000000, $n * 2000000); h.flush()"
  if strace -f -qq -o /dev/null -e trace=pwritev2 -e inject=pwritev2:signal=KILL:when=2 \
    -P "$PWD/device.raw" "$IMG" --control "$sockdir/qmp" backup --onto device.raw \
    a.qcow2 backups; then
    fail "not killed"
  fi
done
img --control "$sockdir/qmp" backup --onto device.raw a.qcow2 backups | grep incremental
stop_nbdkit
same "incremental backup"
