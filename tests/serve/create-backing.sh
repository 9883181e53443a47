#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# New images with a backing file: its name and format are in the header as given, a
# relative name is relative to the image, create=auto takes its size, and its data is
# visible.

# shellcheck disable=SC2016

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

mkdir "$tmp/dir"
cd "$tmp"
make_image dir/base.qcow2 5M
qemu-io -f qcow2 -c 'write -P 7 1M 1M' dir/base.qcow2
random_file dir/base.raw 3000320
before=$(fingerprint dir/base.qcow2)

# info KEY IMAGE
info ()
{
  qemu-img info --output=json "$2" | "$python" -c "
import json, sys
print(json.load(sys.stdin)['$1'])"
}

# Relative to the image, not to the current directory.
"$NBDKIT" -U - "$PLUGIN" dir/a.qcow2 create=auto backing-file=base.qcow2 \
  backing-format=qcow2 --run 'nbdcopy "$uri" a.raw'
[ "$(info backing-filename dir/a.qcow2)" = base.qcow2 ]
[ "$(info backing-filename-format dir/a.qcow2)" = qcow2 ]
[ "$(info virtual-size dir/a.qcow2)" = 5242880 ]
qemu-img compare -f raw -F qcow2 a.raw dir/base.qcow2
check_clean dir/a.qcow2

# Larger, smaller, by its whole path, raw; in small clusters, whose header has little
# room.
for size in 1M 8M; do
  for version in 0.10 1.1; do
    rm -f dir/b.qcow2
    start_nbdkit file=dir/b.qcow2 create="$size" backing-file="$tmp/dir/base.qcow2" \
      backing-format=qcow2 cluster-size=512 compat="$version"
    nbdsh_run -c '
h.pwrite(b"x" * 1000, 1 << 19)
assert h.pread(1 << 19, 0) == bytes(1 << 19)'
    stop_nbdkit
    check_clean dir/b.qcow2
    [ "$(info backing-filename dir/b.qcow2)" = "$tmp/dir/base.qcow2" ]
  done
done
"$NBDKIT" -U - "$PLUGIN" dir/c.qcow2 create=auto backing-file=base.raw \
  backing-format=raw --run 'nbdcopy "$uri" c.raw'
[ "$(info backing-filename-format dir/c.qcow2)" = raw ]
cmp c.raw dir/base.raw

# Of a raw file whose size is no multiple of a sector, QEMU takes whole sectors; so do we.
printf 'x%.0s' {1..1000} > dir/odd.raw
qemu-img create -q -f qcow2 -b odd.raw -F raw dir/odd.qemu.qcow2
"$NBDKIT" -U - "$PLUGIN" dir/odd.qcow2 create=auto backing-file=odd.raw \
  backing-format=raw --run :
[ "$(info virtual-size dir/odd.qcow2)" = "$(info virtual-size dir/odd.qemu.qcow2)" ]

# An image on top of one that was made a moment ago.
"$NBDKIT" -U - "$PLUGIN" dir/d.qcow2 create=auto backing-file=a.qcow2 \
  backing-format=qcow2 --run 'nbdcopy "$uri" d.raw'
cmp a.raw d.raw

# What is below must be there, and be what it is said to be; else nothing is made.
try ()
{
  refused "$@"
  [ ! -e dir/new.qcow2 ]
}
new=(dir/new.qcow2 create=1M)
try 'nosuch.*No such file' "${new[@]}" backing-file=nosuch backing-format=raw
try 'base.raw.*not a qcow2 image' "${new[@]}" backing-file=base.raw backing-format=qcow2
try 'only files and NBD' "${new[@]}" backing-file=http://localhost/x backing-format=raw
try 'nbd://localhost:1/: cannot connect' "${new[@]}" backing-file=nbd://localhost:1 \
  backing-format=raw
try 'new.qcow2.*No such file' "${new[@]}" backing-file=new.qcow2 backing-format=qcow2
try 'backing-format=' "${new[@]}" backing-file=base.raw
try 'backing-format= requires backing-file=' "${new[@]}" backing-format=raw
try 'name of the backing file has 1024 bytes' "${new[@]}" backing-format=raw \
  backing-file="$(printf './%.0s' {1..508})base.raw"
try 'name of the backing file is too long' "${new[@]}" backing-format=raw cluster-size=512 \
  backing-file="$(printf './%.0s' {1..200})base.raw"
mkdir $'dir/\e'
try 'backing-file=.*control' "${new[@]}" backing-format=raw \
  backing-file=$'./\e/../base.raw'

[ "$(fingerprint dir/base.qcow2)" = "$before" ]
