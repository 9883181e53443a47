#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The mapping cache as small as can be: slow, but right.  The slices of all sizes.

. "${srcdir:-$(dirname "$0")}/functions.sh"
requires_tools

random_file "$tmp/base.raw" $((1 << 20))
for row in 0:4k:512 1:4k:512 1K:512:512 4K:64k:512 64K:4k:4K 32M:4k:4K 16K:64k:64K; do
  IFS=: read -r cache cluster slice <<< "$row"
  img="$tmp/a.qcow2"
  make_image "$img" 4M \
    "cluster_size=$cluster,backing_file=base.raw,backing_fmt=raw"
  cp "$tmp/base.raw" "$tmp/model.raw"
  truncate -s 4M "$tmp/model.raw"
  start_nbdkit file="$img" l2-cache="$cache" l2-slice="$slice"
  model random "$uri" "$tmp/model.raw" --seconds 1 --cluster "$cluster"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
done
