#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If a directory cannot be made durable, it is not known which manifest a power cut would leave.
# Whatever the one that is there names can be restored, and the next backup goes well.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -o /dev/null -e inject=fsync:error=EIO:when=1 true

qemu-img create -q -f qcow2 a.qcow2 4M
qemu-io -f qcow2 -c 'write -P 1 0 4M' a.qcow2
img backup a.qcow2 backups
qemu-io -f qcow2 -c 'write -P 2 1M 1M' a.qcow2
mkdir before
cp -a a.qcow2 backups before
newest ()
{
  "$python" -c 'import json
print(json.load(open("backups/manifest.json"))["generations"][-1]["number"])'
}
restored ()
{
  img restore backups restored.raw
  qemu-img compare -f qcow2 -F raw a.qcow2 restored.raw
  rm restored.raw
}
in_doubt=0
for n in {1..20}; do
  status=0
  strace -f -qq -o /dev/null -e inject=fsync:error=EIO:when="$n" \
    "$IMG" backup a.qcow2 backups || status=$?
  [ $status != 0 ] || break
  if [ "$(newest)" = 2 ]; then
    in_doubt=$((in_doubt + 1))
    restored
  fi
  img backup a.qcow2 backups
  restored
  rm -r a.qcow2 backups
  cp -a before/. .
done
[ $status = 0 ]
[ $in_doubt = 1 ]
