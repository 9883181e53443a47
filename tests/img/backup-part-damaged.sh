#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If the file of a backup that was cut off is damaged, so that the next backup cannot go on with
# it, that one says so, and copies all of it.  The manifest says before that nothing is there: what
# is cut off then does not go on with a new file as if it were the old one.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -o /dev/null -e trace=renameat -e inject=renameat:signal=KILL:when=1 true

for what in 'raw no' 'raw yes' 'qcow2 yes'; do
  read -r format killed <<< "$what"
  qemu-img create -q -f qcow2 a.qcow2 48M
  qemu-io -f qcow2 -c 'write -P 1 0 48M' a.qcow2
  # When the manifest is to name the complete generation.
  strace -f -qq -o /dev/null -e trace=renameat -e inject=renameat:signal=KILL:when=2 \
    "$IMG" backup -q -r 6M -O $format a.qcow2 backups || :
  grep '"done": [1-9]' backups/manifest.json
  : > backups/000001.$format.part
  if [ $killed = yes ]; then
    strace -f -qq -o /dev/null -e trace=unlink -e inject=unlink:signal=KILL \
      -P "$PWD/backups/000001.$format.part" "$IMG" backup -q -O $format a.qcow2 backups 2> err || :
    grep '"done": 0' backups/manifest.json
    img backup -q -O $format a.qcow2 backups
  else
    img backup -q -O $format a.qcow2 backups 2> err
  fi
  grep 'is copied from its beginning: its file is damaged' err
  img restore backups restored.raw
  qemu-img compare -f qcow2 -F raw a.qcow2 restored.raw
  rm -r a.qcow2 backups restored.raw
done

# In place, the manifest has to say what was copied.
cd ours
qemu-img create -q -f qcow2 a.qcow2 48M
qemu-io -f qcow2 -c 'write -P 1 0 48M' a.qcow2
truncate -s 48M device.raw
strace -f -qq -o /dev/null -e trace=renameat -e inject=renameat:signal=KILL:when=3 \
  "$IMG" backup -q -r 6M --onto device.raw a.qcow2 backups || :
cp backups/manifest.json manifest.json
for change in 'p["done"] = -p["done"]' 'del p["marks"]' 'p["marks"] = []' 'p["done"] = 1 << 60'; do
  "$python" - "$change" <<'PY'
import json
import sys
m = json.load(open("manifest.json"))
p = m["part"]
assert p["done"] > 0, p
exec(sys.argv[1])
json.dump(m, open("backups/manifest.json", "w"))
PY
  img_refused 'does not say what was copied|more was copied than the disk has' \
    backup --onto device.raw a.qcow2 backups
done
cp manifest.json backups/
img backup -q --onto device.raw a.qcow2 backups
qemu-img compare -f qcow2 -F raw a.qcow2 device.raw
