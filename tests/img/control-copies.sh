#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With --control, map tells which parts of a disk in use have data, as qemu-img does of its
# export, and convert -l copies an internal snapshot while clients write: it is what the disk
# was at that moment.  Only a snapshot is taken for one, whatever exports are called.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

make_image disk.qcow2 8M
qemu-io -f qcow2 -c 'write -P 1 0 2M' -c 'write -P 2 4M 1M' disk.qcow2
start_nbdkit control="$sockdir/qmp" disk.qcow2
live () { "$IMG" --control "$sockdir/qmp" "$@"; }
# (qemu-img 7.2 does not say what is compressed.)
older () { sed 's/, "compressed": false//'; }
live_refused ()
{
  if live "${@:2}" 2>err; then fail "not refused: $*"; fi
  grep -Eq "^nbdkit-qcow2-img: $1" err || fail "$(cat err)"
}

live snapshot -c s disk
nbdcopy "$uri" model.raw
PYTHONPATH="$srcdir/lib" "$python" - "$uri" "$IMG" "$sockdir/qmp" <<'PY'
import shutil
import subprocess
import sys
from qmp import Writers

uri, img, socket = sys.argv[1:]
shutil.copy("model.raw", "now.raw")
writers = Writers(uri, "now.raw", 2).start()
def convert(*words):
    subprocess.run([img, "--control", socket, "convert", *words], check=True)
convert("-l", "s", "disk", "copy.raw")
convert("-l", "snapshot.name=s", "-c", "-O", "qcow2", "disk.qcow2", "copy.qcow2")
subprocess.run("'%s' --control '%s' convert -l 1 disk - > piped.raw" % (img, socket),
               shell=True, check=True)
writers.end()
PY
cmp copy.raw model.raw
cmp piped.raw model.raw
if cmp now.raw model.raw; then fail 'nothing was written'; fi
check_clean copy.qcow2
qemu-img compare -f qcow2 -F raw copy.qcow2 model.raw

live map --output=json disk | older > our-map
qemu-img map -f raw --output=json "$uri" | older > their-map
cmp our-map their-map
live map --snapshot s -s 1M -l 4M --output=json disk | older > our-map
qemu-img map -f raw -s 1M -l 4M --output=json "$(export_uri s)" | older > their-map
cmp our-map their-map
live map --snapshot s disk | grep '^0x400000 *0x100000 *0x400000 *nbd'

live_refused 'convert --control requires -l' convert disk x
live_refused 'convert --control is for one disk' convert -l s disk disk x
live_refused '-B cannot be used with --control' convert -l s -B b -F qcow2 disk x
live_refused '-f cannot be used with --control' map -f raw disk
live_refused ".*no disk that this server is using is called 'other'" convert -l s other x
live_refused ".*There is no snapshot 'none' in .*disk.qcow2" convert -l none disk x
live bitmap --add disk b
for name in '' layer:0 bitmap:b snapshot.id=9; do
  live_refused ".*There is no snapshot '$name' in" convert -l "$name" disk x
  live_refused ".*There is no snapshot '$name' in" map --snapshot "$name" disk
done
for name in layer:0 bitmap:b 1; do live snapshot -c "$name" disk; done
nbdsh_run -c 'h.zero(8 << 20, 0)'
live convert -l layer:0 disk x
qemu-img compare -f raw -F raw x now.raw
live convert -l bitmap:b -n disk x
qemu-img compare -f raw -F raw x now.raw
live_refused '.*name of one snapshot and the id of another' convert -l 1 disk x
live convert -l snapshot.id=1 disk x
cmp x model.raw
rm x
live_refused "--nbd: 'x' is not an NBD URI" map --nbd x disk
[ ! -e x ]
stop_nbdkit

# An image of a directory that no client uses.
mkdir dir
mv disk.qcow2 dir/disk
start_nbdkit control="$sockdir/qmp" dir=dir
live convert -l s disk again.raw
cmp again.raw model.raw
live convert -l snapshot.name=s disk/node0 again.raw
cmp again.raw model.raw
uri=$(export_uri disk) nbdsh_run -c 'h.pwrite(b"x" * 512, 0)
import sys
sys.path.insert(0, "'"$srcdir"'/lib")
from qmp import Client
Client("'"$sockdir"'/qmp").get("blockdev-snapshot-sync", device="disk",
                               **{"snapshot-file": "'"$PWD"'/above"})'
live_refused ".*there is one in the file below it, .*: $PWD/dir/disk" convert -l s disk x
live_refused ".*no disk that this server is using" map disk/node1
"$IMG" convert -l s -O raw dir/disk again.raw
cmp again.raw model.raw
stop_nbdkit
