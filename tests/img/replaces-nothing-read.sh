#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# convert, dd and create of nbdkit-qcow2-img never replace or write a file that they read, or
# that the new image would need: the source, any file of its backing chain or of the new one,
# or the data file of one of them, by whatever name (a link, file:, JSON), in whatever way.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

cd ours
qemu-img create -q -f qcow2 -o data_file=data.raw base.qcow2 4M
qemu-io -f qcow2 -c 'write -P 1 0 4M' base.qcow2
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 mid.qcow2
qemu-io -f qcow2 -c 'write -P 2 1M 1M' mid.qcow2
json='json:{"driver":"qcow2","file":{"driver":"file","filename":"mid.qcow2"}}'
qemu-img create -q -f qcow2 -b "$json" -F qcow2 over.qcow2
qemu-io -f qcow2 -c 'write -P 3 2M 1M' over.qcow2
qemu-img create -q -f raw single.raw 4M
ln base.qcow2 hard
ln -s ./data.raw soft
cd ..
before=$(cat ours/*.qcow2 ours/*.raw | sha256sum)

# not_replaced ARGUMENT...
not_replaced ()
{
  local result=0

  (cd ours && img "$@") 2> ours.err || result=$?
  [ "$before" = "$(cat ours/*.qcow2 ours/*.raw | sha256sum)" ] || fail "changed: $*"
  [ "$result" = 1 ] || fail "exit status $result: $*"
  grep -E 'read and written at the same time|are the same file' ours.err
  nothing_left
}

for target in mid.qcow2 base.qcow2 hard data.raw soft; do
  for how in "" -U "-m 8" "-S 4k" "-S 4k -U" "-o preallocation=metadata" -c; do
    # shellcheck disable=SC2086
    not_replaced convert -O qcow2 $how over.qcow2 "$target"
  done
  for how in "" -U "-m 8" "-S 0" "-o preallocation=full"; do
    # shellcheck disable=SC2086
    not_replaced convert -O raw $how over.qcow2 "$target"
  done
  not_replaced convert -O qcow2 over.qcow2 single.raw "$target"
  not_replaced convert -O qcow2 single.raw over.qcow2 "$target"
  not_replaced convert -O qcow2 -B over.qcow2 -F qcow2 over.qcow2 "$target"
  not_replaced dd if=over.qcow2 of="$target"
  not_replaced dd count=0 -O qcow2 if=over.qcow2 of="$target"
  not_replaced create -f qcow2 -b over.qcow2 -F qcow2 "$target"
  not_replaced create -f qcow2 -u -b over.qcow2 -F qcow2 "$target" 4M
done
for name in mid.qcow2 ./mid.qcow2 file:mid.qcow2 "$json" \
    'json:{"driver":"qcow2","file.driver":"file","file.filename":"mid.qcow2"}' ; do
  # (In JSON, relative names are those of the working directory.)
  not_replaced create -f qcow2 -b "$name" -F qcow2 mid.qcow2
  not_replaced create -f qcow2 -u -b "$name" -F qcow2 mid.qcow2 4M
done
not_replaced create -f qcow2 -F raw \
  -b 'json:{"driver":"raw","file":{"driver":"file","filename":"single.raw"}}' single.raw
for target in over.qcow2 ./over.qcow2; do
  for how in "" -U "-c -O qcow2" -n; do
    # shellcheck disable=SC2086
    not_replaced convert $how over.qcow2 "$target"
    # shellcheck disable=SC2086
    not_replaced convert $how single.raw over.qcow2 "$target"
  done
done
not_replaced dd if=hard of=base.qcow2

# An overlay whose backing file is missing can still be made anew.
rm ours/base.qcow2 ours/hard
img create -q -u -f qcow2 -b mid.qcow2 -F qcow2 ours/over.qcow2 4M
