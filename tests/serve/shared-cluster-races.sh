#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Requests that share clusters but no byte are safe with any timing: writes, zeros (which
# may free the cluster or must not), trims and reads on very few clusters, with many
# requests in flight.  (qemu-nbd 7.2 fails this test.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/base.raw" $((1 << 20))
sample 2 64k:256k:preallocation=metadata 64k:192k: 4k:24k: 512:4k:refcount_bits=1 \
  2M:4M: 64k:256k:backing_file=base.raw,backing_fmt=raw
for row in "${sample[@]}"; do
  IFS=: read -r cluster size more <<< "$row"
  img="$tmp/a.qcow2"
  make_image "$img" "$size" "cluster_size=$cluster${more:+,$more}"
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/model.raw"
  start_nbdkit file="$img"
  # All of it zero clusters that have their host cluster.
  nbdsh_run -c 'n = h.get_size(); h.pwrite(b"x" * n, 0); h.flush()' \
            -c 'h.zero(n, 0, nbd.CMD_FLAG_NO_HOLE); h.flush()'
  truncate -s 0 "$tmp/model.raw"
  truncate -s "$(nbdinfo --size "$uri")" "$tmp/model.raw"
  model random "$uri" "$tmp/model.raw" --seconds 1.7 --connections 8 --depth 3 \
    --cluster "$cluster" --max-len "$cluster" \
    --weights pread=15,pwrite=40,zero=30,trim=15,extents=2,cache=0
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
done
