#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A full backup in place that was cut off does not go on with an empty target as if that were the
# old one, although almost all of the disk is zeros that take space; nor with a target of which
# the end of what was copied has been cut off.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -o /dev/null -e trace=fdatasync -e inject=fdatasync:signal=KILL:when=1 true
cd ours

# cut_off: after some seconds, when it syncs the target again.
cut_off ()
{
  if strace -f -qq -o /dev/null -e trace=fdatasync -e inject=fdatasync:signal=KILL:when=2 \
    -P "$PWD/device.raw" "$IMG" backup -q -r 6M --onto device.raw a.qcow2 backups; then
    fail "not killed"
  fi
}

same ()
{
  img backup -q --onto device.raw a.qcow2 backups
  qemu-img compare -f qcow2 -F raw a.qcow2 device.raw
}

make_image a.qcow2 48M preallocation=full
io a.qcow2 'write -P 1 1100k 16k' 'write -P 1 40M 16k'
truncate -s 48M device.raw
cut_off
rm device.raw
truncate -s 48M device.raw
same

rm -r a.qcow2 backups
make_image a.qcow2 48M
io a.qcow2 'write -P 1 0 48M'
# (On a busy machine it may sync twice before it notes how far it is.)
until grep '"part"' backups/manifest.json; do cut_off; done
size="$("$python" -c 'import json; print(json.load(open("backups/manifest.json"))["part"]["done"])')"
truncate -s $((size - 4096)) device.raw
truncate -s 48M device.raw
same 2>&1 | tee err
grep 'is copied from its beginning: this is another target' err
