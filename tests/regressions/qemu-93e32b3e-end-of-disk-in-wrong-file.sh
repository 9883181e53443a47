#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU, commit 93e32b3e2012: a disk with an external data file grows, and its end is
# written to the image.
#
# With preallocation, the last byte of the disk went to the wrong file: "it could in
# theory cause visible corruption if the metadata of the image is larger than the data".
#
# https://repo.or.cz/qemu/ar7.git/commit/93e32b3e2012a668e4da1c2566d2935c24060435
# Broken: data-file-extended-in-image

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2" data="$tmp/a.data"
# Header, refcount table, refcount block, L1 and L2 table lie behind the disk of 64 KiB.
# It grows to just behind where each of them begins, and is then written to its end.
for raw in off on; do
  for ((at = 0; at <= 4; at++)); do
    rm -f "$img" "$data"
    make_image "$img" 64k "data_file=$data,data_file_raw=$raw"
    io "$img" 'write -P 0x61 0 64k'
    size=$(((at << 16) + 65536 + 512))
    start_and_end file="$img" resize=$size
    check_clean "$img"
    [ "$(virtual_size "$img")" = $size ]
    [ "$(file_size "$data")" -ge $size ]
    qemu-io -r -f qcow2 -c 'read -P 0x61 0 64k' -c "read -P 0 64k $((size - 65536))" \
      "$img"
    start_nbdkit file="$img"
    nbdsh_run -c "h.pwrite(b'b' * 512, $size - 512)"
    stop_nbdkit
    check_clean "$img"
    qemu-io -r -f qcow2 -c "read -P 0x62 $((size - 512)) 512" "$img"
    cmp -n 512 -i $((size - 512)):0 "$data" <(head -c 512 /dev/zero | tr '\0' b)
  done
done
