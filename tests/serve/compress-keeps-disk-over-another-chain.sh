#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Compressed, too, a disk reads the same over another backing chain, or without one: after
# rebase -c, flatten=true, copy-on-read and writes with detect-zeroes and compress=on, and a
# commit of all that.  What counts is what the chain shows that the image has afterwards:
# zeros that were nowhere stored have to be, if data would appear in their place.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

IMG="$abs_top_builddir/img/nbdkit-qcow2-img"
cd "$tmp"

# shows IMAGE RAW: the disk of IMAGE is that in the raw file, and the image is clean.
shows ()
{
  check_clean "$1"
  qemu-img compare -q -f qcow2 -F raw "$1" "$2"
}

# The disk ends within a cluster.
size=$(((1 << 20) + 5120))
# The old chain: shows zeros in whole clusters (also stored ones), and in parts of them.
qemu-img create -q -f qcow2 -o compat=0.10 empty.qcow2 $size
qemu-img create -q -f qcow2 -o compat=0.10 short.qcow2 512k
qemu-io -f qcow2 -c 'write -P 1 100k 1k' -c 'write -P 0 200k 60k' -c 'write -P 2 320k 64k' \
  short.qcow2 > io.log
# The new one has other data, in other parts of clusters.
truncate -s $size ones.raw
qemu-io -f raw -c "write -P 255 0 $size" ones.raw > io.log
truncate -s $size some.raw
qemu-io -f raw -c 'write -P 255 66k 1k' -c 'write -P 255 190k 20k' \
  -c 'write -P 255 300k 100k' \
  -c 'write -P 255 700k 1k' -c 'write -P 255 1024k 512' some.raw > io.log

sample 2 compat={0.10,1.1},cluster_size={4k,64k,2M} extended_l2=on,cluster_size=64k
for options in "${sample[@]}"; do
  for old in '' empty short; do
    over=(${old:+-b "$old.qcow2" -F qcow2})
    for new in ones some; do
      qemu-img create -q -f qcow2 -o "$options" "${over[@]}" top.qcow2 $size
      qemu-io -f qcow2 -c 'write -P 3 640k 50k' -c 'write -P 4 130k 512' top.qcow2 > io.log
      qemu-img convert -f qcow2 -O raw top.qcow2 want.raw
      "$IMG" rebase -c -b "$new.raw" -F raw top.qcow2
      shows top.qcow2 want.raw
      # And back.
      "$IMG" rebase -c -b "${old:+$old.qcow2}" ${old:+-F qcow2} top.qcow2
      shows top.qcow2 want.raw
    done

    # Over data, with zeros of its own.
    cp short.qcow2 middle.qcow2
    "$IMG" rebase -c -b ones.raw -F raw middle.qcow2
    qemu-img create -q -f qcow2 -o "$options" -b middle.qcow2 -F qcow2 top.qcow2 $size
    start_nbdkit top.qcow2 compress=on copy-on-read=true detect-zeroes=unmap
    nbdsh_run -c 'h.pwrite(bytes(300000), 0x14000)' \
      -c 'h.pwrite(b"\5" * 70000 + bytes(140000), 0x4000)' -c 'h.pread(512 << 10, 300 << 10)'
    stop_nbdkit
    qemu-img convert -f qcow2 -O raw top.qcow2 want.raw
    cat > want.io <<'IO'
read -P 5 16384 70000
read -P 0 86384 295536
read -P 2 374k 10k
read -P 0 384k 645k
IO
    if qemu-io -f raw want.raw < want.io | grep 'Pattern verification failed'; then
      fail "the writes are not there"
    fi
    cp top.qcow2 flat.qcow2
    start_and_end flat.qcow2 flatten=true compress=on
    shows flat.qcow2 want.raw
    "$IMG" commit -q top.qcow2
    shows top.qcow2 want.raw
    shows middle.qcow2 want.raw
  done
done
