#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# After an external snapshot the old image is the backing file of the new one.  A server that
# is started with the name of the old one lets no client write it, and changes nothing in it;
# the line in its log names both images.  It can still be read.  This is so whatever link or
# directory leads to it, with QEMU's own changes of its header, and where the snapshot was
# taken twice before anything was written, also after they were renamed.  It can be written
# again when the new image has gone, or has nothing in it, and so can a copy.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/oldimage.sh"
requires_tools

d="$tmp/d"
mkdir "$d"
base="$d/base.qcow2"

qmp ()
{
  PYTHONPATH="$srcdir/lib" "$python" -c 'import sys
from qmp import Client
c = Client(sys.argv[1])
exec(sys.argv[2])' "$sockdir/qmp" "$1"
}

# snapshot FILE: of the disk that is served.
snapshot ()
{
  qmp "c.get('blockdev-snapshot-sync', device='disk', snapshot_file='$1')"
}

# old IMAGE NEW [FILE]: it is refused, as FILE, because of NEW, and does not change.
old ()
{
  not_written ".* in" "$1" "$2," "${@:3}"
}

for options in compat=v2 cluster_size=4k,extended_l2=off "" data_file="$d/data"; do
  rm -f "$d"/*
  make_image "$base" 8M "$options"
  start_nbdkit control="$sockdir/qmp" "$base"
  nbdsh_run -c 'h.pwrite(b"1" * 65536, 0)'
  snapshot "$d/o1.qcow2"
  nbdsh_run -c 'h.pwrite(b"2" * 65536, 0, nbd.CMD_FLAG_FUA)'
  kill9_nbdkit
  check_clean "$base"
  old "$base" "$d/o1.qcow2"
done
rm -f "$d"/*
make_image "$base" 8M
start_nbdkit control="$sockdir/qmp" "$base"
snapshot "$d/o1.qcow2"
stop_nbdkit
current "$base"                         # as after a crash before the snapshot
rm "$d/o1.qcow2"
start_nbdkit control="$sockdir/qmp" "$base"
snapshot "$d/o1.qcow2"
nbdsh_run -c 'h.pwrite(b"2" * 65536, 0, nbd.CMD_FLAG_FUA)'
stop_nbdkit

start_nbdkit -r -- "$base"
nbdsh_run -c 'assert h.pread(512, 1 << 19) == b"w" * 512 and h.is_read_only()'
stop_nbdkit
opens_no o1.qcow2 -r "$base"
opens_no o1.qcow2 "$base" untrusted=true
ln -s d/base.qcow2 "$tmp/link.qcow2"
old "$base" "$d/o1.qcow2" "$tmp/link.qcow2"
refused "o1.qcow2" "$base" resize=9M
start_nbdkit control="$sockdir/qmp" "$base"
qmp "c.refuses('o1.qcow2', 'blockdev-snapshot-sync', device='disk', snapshot_file='$d/n.qcow2')"
stop_nbdkit
[ ! -e "$d/n.qcow2" ]
start_nbdkit dir="$d"
uri="$(export_uri base.qcow2)" refused_connection 'base.qcow2: is not written: .*o1.qcow2,'
nbdinfo --size "$(export_uri o1.qcow2)"
stop_nbdkit
qemu-img amend -f qcow2 -o lazy_refcounts=on "$base"
qemu-img check -f qcow2 -r all "$base"
old "$base" "$d/o1.qcow2"

cp "$base" "$tmp/copy.qcow2"
current "$tmp/copy.qcow2"
qemu-img create -q -f qcow2 -b "$base" -F qcow2 "$d/other.qcow2"
io "$d/other.qcow2" 'write 0 64k'
mv "$base" "$d/renamed.qcow2"
old "$d/renamed.qcow2" "$d/o1.qcow2"
mv "$d/renamed.qcow2" "$base"
mv "$d" "$tmp/renamed"
old "$tmp/renamed/base.qcow2" "$tmp/renamed/o1.qcow2"
mv "$tmp/renamed" "$d"
mv "$d/o1.qcow2" "$d/kept.qcow2"
current "$base"

# Twice, and somewhere else.
start_nbdkit control="$sockdir/qmp" "$base"
snapshot "$d/e1.qcow2"
snapshot "$tmp/e2.qcow2"
snapshot "$d/e3.qcow2"
stop_nbdkit
current "$d/e1.qcow2"
old "$base" "$d/e3.qcow2"
rm "$d/e1.qcow2"
current "$base"
start_nbdkit control="$sockdir/qmp" "$base"
snapshot "$d/e1.qcow2"
snapshot "$tmp/e4.qcow2"
nbdsh_run -c 'h.pwrite(b"4" * 65536, 0)'
stop_nbdkit
old "$base" "$tmp/e4.qcow2"
old "$d/e1.qcow2" "$tmp/e4.qcow2"
current "$tmp/e4.qcow2"

# An image without space in its header is as before, and so is one that would not be opened
# with the name.
mkdir "$d/in"$'\n'lines
ln -s "in"$'\n'lines "$d/link"
make_image "$tmp/copy.qcow2" 8M
start_nbdkit control="$sockdir/qmp" "$tmp/copy.qcow2"
snapshot "$d/link/new.qcow2"
stop_nbdkit
current "$tmp/copy.qcow2"
make_image "$tmp/small.qcow2" 1M cluster_size=512
long="$d/$(printf '%0200d' 1)"
mkdir "$long" "$long/$(printf '%0200d' 1)"
start_nbdkit control="$sockdir/qmp" "$tmp/small.qcow2"
snapshot "$long/$(printf '%0200d' 1)/new.qcow2"
nbdsh_run -c 'h.pwrite(b"4" * 512, 0)'
stop_nbdkit
check_clean "$tmp/small.qcow2"
start_nbdkit "$tmp/small.qcow2"
nbdinfo --size "$uri"
stop_nbdkit
