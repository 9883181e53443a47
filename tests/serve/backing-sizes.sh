#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Backing files that are shorter or longer than the overlay, of odd sizes, with other
# cluster sizes.  Past the end of a shorter one the disk reads as zeros.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

overlay_size=$((2 << 20))
sample 3 raw:100000:64k raw:3000001:64k raw:1048577:4k raw:0:64k \
  qcow2:1000448:64k:4k qcow2:1000448:4k:1M qcow2:4194304:512:64k
for row in "${sample[@]}"; do
  IFS=: read -r format size cluster base_cluster <<< "$row"
  random_file "$tmp/base.raw" "$size"
  base="$tmp/base.raw"
  if [ "$format" = qcow2 ]; then
    base="$tmp/base.qcow2"
    qemu-img convert -f raw -O qcow2 -o "cluster_size=$base_cluster" \
      "$tmp/base.raw" "$base"
  fi
  img="$tmp/overlay.qcow2"
  make_image "$img" "$overlay_size" \
    "backing_file=$base,backing_fmt=$format,cluster_size=$cluster"
  cp "$tmp/base.raw" "$tmp/model.raw"
  truncate -s "$overlay_size" "$tmp/model.raw"
  start_nbdkit file="$img"
  model verify "$uri" "$tmp/model.raw"
  model random "$uri" "$tmp/model.raw" --seconds 1 --cluster "$cluster"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
done

# In the middle of a chain, a shorter layer hides what a longer one below it holds.
random_file "$tmp/low.raw" $((2 << 20))
make_image "$tmp/mid.qcow2" 1M "backing_file=low.raw,backing_fmt=raw"
make_image "$tmp/top.qcow2" 2M "backing_file=mid.qcow2,backing_fmt=qcow2"
cp "$tmp/low.raw" "$tmp/model.raw"
truncate -s 1M "$tmp/model.raw"
truncate -s 2M "$tmp/model.raw"
start_nbdkit file="$tmp/top.qcow2"
model verify "$uri" "$tmp/model.raw"
model random "$uri" "$tmp/model.raw" --seconds 1
stop_nbdkit
check_clean "$tmp/top.qcow2"
same_as_raw "$tmp/top.qcow2" "$tmp/model.raw"
