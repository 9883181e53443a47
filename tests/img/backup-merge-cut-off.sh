#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# --keep that cannot merge, or is killed meanwhile: the file that is to be merged belongs to no
# generation, but the others lie over it.  If it is missing, or was cut off, restore and --verify
# say so, and the next backup is a full one.  Otherwise the next --keep goes on; until then, no
# checksum is known that could be compared, and --verify says so, and what finds a change then.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -e trace=pwritev2 -e inject=pwritev2:signal=KILL:when=1 true
cd ours

make_image a.qcow2 8M
for n in 1 2 3; do
  io a.qcow2 "write -P $n ${n}M 512k"
  img backup -q a.qcow2 backups
done
mkdir was
cp -r a.qcow2 backups was
begin ()
{
  rm -rf a.qcow2 backups x.raw
  cp -r was/* .
}
# A program reads the base while it is to be merged.
held ()
{
  begin
  hold_in_qemu_io -r -f qcow2 backups/000001.qcow2
  img_refused '000001.qcow2: .*lock' backup --keep 3 a.qcow2 backups
  grep 'this backup is complete, but older ones were not merged' ../ours.out
  end_qemu_io
}
killed ()
{
  begin
  if strace -f -qq -o /dev/null -e trace=pwritev2 -e inject=pwritev2:signal=KILL:when=2 \
    -P "$PWD/backups/000001.qcow2" "$IMG" backup -q --keep 3 a.qcow2 backups; then
    fail "not killed"
  fi
}
# refused PATTERN: by those who need the base.
refused ()
{
  img_refused "000001.qcow2: $1" restore --verify backups
  img_refused "000001.qcow2: $1" restore --verify backups x.raw
}
full ()
{
  img backup a.qcow2 backups | grep 'full backup .*a file of the newest backup is missing'
  img restore -q backups x.raw
  qemu-img compare -f qcow2 -F raw a.qcow2 x.raw
}

for how in held killed; do
  "$how"
  img restore --list backups > ../list
  if grep '^ *1 ' ../list; then fail "the oldest one is still there"; fi
  rm backups/000001.qcow2
  refused '.*No such file'
  full
  "$how"
  truncate -s 256k backups/000001.qcow2
  refused 'the file of generation 1 '
  full
done

for how in held killed; do
  "$how"
  img restore --verify backups x.raw > ../out
  grep ', not verified: files without a checksum: 3' ../out
  img restore --verify backups > ../out
  grep '3 generations, 1 with a checksum: no errors; files without: 3 (.*backup --verify' ../out
  img restore --verify --output=json backups x.raw | grep '"verified": false'
  qemu-img compare -f qcow2 -F raw a.qcow2 x.raw
  # One byte of the base: what it shows of offset 1M+4K.
  cp backups/000001.qcow2 good
  qemu-io -f qcow2 -c 'write -q -P 9 1028k 512' backups/000001.qcow2
  img_refused 'what was stored is not what the disk shows' backup -q --verify --keep 3 a.qcow2 \
    backups
  img restore --verify backups | grep '3 generations.*; files without: 3 (a merge is unfinished'
  mv good backups/000001.qcow2
  img backup -q --verify --keep 3 a.qcow2 backups
  img restore --verify backups | grep '3 generations, 3 with a checksum: no errors$'
  img restore -q backups x.raw
  qemu-img compare -f qcow2 -F raw a.qcow2 x.raw
done
