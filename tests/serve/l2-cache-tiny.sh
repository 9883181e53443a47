#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The smallest possible mapping cache is slow, but correct; and slices of all sizes.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/base.raw" $((1 << 20))
sample 3 0:4k:512 1:4k:512 1K:512:512 4K:64k:512 64K:4k:4K 32M:4k:4K 16K:64k:64K
for row in "${sample[@]}"; do
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

# Slices of more entries than are read when memory is short, in two layers, in no order.
random_file "$tmp/model.raw" $((16 << 20))
qemu-img convert -W -m 16 -O qcow2 -o cluster_size=4k "$tmp/model.raw" "$tmp/lower.qcow2"
make_image "$tmp/a.qcow2" 16M "cluster_size=4k,backing_file=lower.qcow2,backing_fmt=qcow2"
start_nbdkit -v -D qcow2.stats=1 -- file="$tmp/a.qcow2" l2-cache=0 l2-slice=2K
model random "$uri" "$tmp/model.raw" --seconds 2 --cluster 4k
stop_nbdkit
read -r misses evictions < <(
  sed -n 's/.* \([0-9]*\) misses, \([0-9]*\) evictions.*/\1 \2/p' "$tmp/main.log")
[ "$misses" -gt $((evictions * 3)) ]
check_clean "$tmp/a.qcow2"
same_as_raw "$tmp/a.qcow2" "$tmp/model.raw"

# However small the pieces are in which a backing file must be thought of: its size is no
# multiple of a cluster.
random_file "$tmp/odd.raw" $(((1 << 20) + 512))
make_image "$tmp/a.qcow2" 64G preallocation=metadata,backing_file=odd.raw,backing_fmt=raw ||
  make_image "$tmp/a.qcow2" 64G backing_file=odd.raw,backing_fmt=raw
start_nbdkit -v -D qcow2.stats=1 -- file="$tmp/a.qcow2" l2-cache=0
"$python" - "$sock" <<'PY'
import nbd, sys
h = nbd.NBD()
h.connect_unix(sys.argv[1])
for offset in range(0, 64 << 30, 32 << 20):
    h.pwrite(b"x" * 512, offset)
h.flush()
for offset in range(0, 64 << 30, 32 << 20):
    assert h.pread(1024, offset)[:512] == b"x" * 512
h.shutdown()
PY
stop_nbdkit
check_clean "$tmp/a.qcow2"
most=$(sed -n 's/.* \([0-9]*\) bytes held.*/\1/p' "$tmp/main.log")
[ "$most" -lt 60000 ]
