#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An overlay over a qcow2 base: clusters that were not written are read from the base, and
# partly written clusters are completed from it.  The base does not change.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/base.raw" $((4 << 20))
# Some holes and zero clusters in the base.
qemu-img convert -f raw -O qcow2 "$tmp/base.raw" "$tmp/base.qcow2"
qemu-io -f qcow2 -c 'write -z 1M 512k' -c 'discard 2M 512k' -c 'write -z -u 3M 100k' \
  "$tmp/base.qcow2"
qemu-img convert -f qcow2 -O raw "$tmp/base.qcow2" "$tmp/base.raw"
before=$(fingerprint "$tmp/base.qcow2")

# Version 2 can only trim what reads as zeros below.
for compat in v2:any v3:zero; do
  img="$tmp/overlay.qcow2"
  make_image "$img" 4M \
    "backing_file=base.qcow2,backing_fmt=qcow2,compat=${compat%:*}"
  cp "$tmp/base.raw" "$tmp/model.raw"
  start_nbdkit file="$img"
  model verify "$uri" "$tmp/model.raw"
  model random "$uri" "$tmp/model.raw" --seconds 2.5 --trim "${compat#*:}"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
  [ "$before" = "$(fingerprint "$tmp/base.qcow2")" ]
done

# Three layers, small clusters above large ones and the other way round.
make_image "$tmp/mid.qcow2" 4M \
  "backing_file=base.qcow2,backing_fmt=qcow2,cluster_size=4k"
qemu-io -f qcow2 -c 'write -P 1 100k 7k' -c 'write -z -u 512k 64k' \
  -c 'write -P 2 3M 300k' "$tmp/mid.qcow2"
make_image "$tmp/top.qcow2" 4M \
  "backing_file=mid.qcow2,backing_fmt=qcow2,cluster_size=256k"
qemu-img convert -f qcow2 -O raw "$tmp/top.qcow2" "$tmp/model.raw"
start_nbdkit file="$tmp/top.qcow2"
model verify "$uri" "$tmp/model.raw"
model random "$uri" "$tmp/model.raw" --seconds 2.5 --cluster 256k
stop_nbdkit
check_clean "$tmp/top.qcow2"
same_as_raw "$tmp/top.qcow2" "$tmp/model.raw"
