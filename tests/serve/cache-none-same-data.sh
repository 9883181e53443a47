#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# cache=none: clients read the same data as with the page cache.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/base.raw" $((2 << 20))
for cluster in 64k 512; do
  img="$tmp/a.qcow2"
  make_image "$img" 8M "cluster_size=$cluster,backing_file=base.raw,backing_fmt=raw"
  cp "$tmp/base.raw" "$tmp/model.raw"
  truncate -s 8M "$tmp/model.raw"
  start_nbdkit file="$img" cache=none
  model random "$uri" "$tmp/model.raw" --seconds 2 --cluster "$cluster"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
  start_nbdkit -r -- file="$img" cache=none
  model verify "$uri" "$tmp/model.raw"
  stop_nbdkit
done
