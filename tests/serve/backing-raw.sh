#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An overlay over a raw base.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/base.raw" $((3 << 20))
truncate -s 4M "$tmp/base.raw"
before=$(fingerprint "$tmp/base.raw")

# Version 2 can only trim what reads as zeros below.
sample 2 v2:any:64k v3:zero:64k v3:zero:512 v3:zero:1M
for row in "${sample[@]}"; do
  IFS=: read -r compat trim cluster <<< "$row"
  img="$tmp/overlay.qcow2"
  make_image "$img" 4M \
    "backing_file=base.raw,backing_fmt=raw,compat=$compat,cluster_size=$cluster"
  cp "$tmp/base.raw" "$tmp/model.raw"
  start_nbdkit file="$img"
  model verify "$uri" "$tmp/model.raw"
  model random "$uri" "$tmp/model.raw" --seconds 1.5 --trim "$trim" \
    --cluster "$cluster"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
  [ "$before" = "$(fingerprint "$tmp/base.raw")" ]
done
