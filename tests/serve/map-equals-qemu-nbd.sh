#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdinfo --map prints the same for the plugin and for qemu-nbd, line by line.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version

compare_maps ()
{
  local pid

  qemu-nbd -r -t -e 0 -f qcow2 -k "$sockdir/q.sock" --pid-file="$tmp/q.pid" "$1" &
  pid=$!
  helper_pids=("$pid")
  await -p "$pid" test -s "$tmp/q.pid"
  nbdinfo --map "nbd+unix:///?socket=$sockdir/q.sock" > "$tmp/map.qemu"
  kill "$pid"
  wait "$pid" || :
  helper_pids=()
  rm -f "$sockdir/q.sock" "$tmp/q.pid"

  start_nbdkit -r -- file="$1"
  nbdinfo --map "$uri" > "$tmp/map.ours"
  stop_nbdkit
  diff -u "$tmp/map.qemu" "$tmp/map.ours"
}

img="$tmp/a.qcow2"
for options in compat=v2 compat=v3 compat=v3,cluster_size=4k compat=v3,cluster_size=2M \
               extended_l2=on extended_l2=on,cluster_size=1M; do
  # Fresh, and of an odd size.
  make_image "$img" 20M "$options"
  compare_maps "$img"
  make_image "$img" 20972032 "$options"
  compare_maps "$img"

  # Written here and there, zeroed, trimmed.
  io "$img" 'write -P 1 0 100k' 'write -P 2 1M 1' 'write -P 3 5M 3M' \
    'write -P 4 20971519 513'
  compare_maps "$img"
  io "$img" 'write -z 6M 512k' 'write -z -u 7M 512k' 'write -z 15M 1M' \
    'discard 5M 128k'
  compare_maps "$img"

  # Shared with a snapshot.
  qemu-img snapshot -c s "$img"
  io "$img" 'write -P 5 5500k 70k' 'write -z -u 7M 512k'
  compare_maps "$img"
done

# Preallocated.
for how in metadata falloc full; do
  make_image "$img" 8M "preallocation=$how"
  compare_maps "$img"
  io "$img" 'write -P 1 1M 200k' 'write -z 1100k 64k'
  compare_maps "$img"
done

# Subclusters that have a host cluster, and no data.
for how in metadata falloc; do
  make_image "$img" 8M "extended_l2=on,preallocation=$how"
  compare_maps "$img"
  io "$img" 'write -P 1 1M 200k' 'write -z 1100k 64k' 'write -P 2 2050k 2k' \
    'discard 1M 64k'
  compare_maps "$img"
done

# An external data file.  (Of a raw one we know more: where its holes are.)
for options in preallocation=off preallocation=metadata cluster_size=4k \
               extended_l2=on; do
  make_image "$img" 8M "data_file=$tmp/a.data,$options"
  compare_maps "$img"
  io "$img" 'write -P 1 0 100k' 'write -P 1 1M 200k' 'write -z 1100k 64k' \
    'write -z -u 2M 64k' 'discard 1M 64k'
  compare_maps "$img"
done

# Backing files.
random_file "$tmp/base.raw" $((1 << 20))
truncate -s 3M "$tmp/base.raw"
for compat in v2 v3; do
  make_image "$img" 8M "backing_file=base.raw,backing_fmt=raw,compat=$compat"
  compare_maps "$img"
  io "$img" 'write -P 1 500k 200k' 'write -P 2 4M 64k'
  compare_maps "$img"
  make_image "$tmp/b.qcow2" 10M \
    "backing_file=a.qcow2,backing_fmt=qcow2,compat=$compat,cluster_size=16k"
  compare_maps "$tmp/b.qcow2"
  io "$tmp/b.qcow2" 'write -P 1 9M 100k' 'write -z 64k 64k' 'discard 512k 64k' \
    'write -P 3 2M 1'
  compare_maps "$tmp/b.qcow2"
done

# Over and below subclusters, with and without space of their own.
for how in off metadata; do
  make_image "$img" 8M \
    "backing_file=base.raw,backing_fmt=raw,extended_l2=on,preallocation=$how"
  io "$img" 'write -P 1 500k 20k' 'write -P 2 4M 3k' 'write -z 600k 10k' \
    'write -z 3072k 3k' 'discard 704k 64k' 'write -P 3 704k 6k'
  compare_maps "$img"
  make_image "$tmp/b.qcow2" 10M "backing_file=a.qcow2,backing_fmt=qcow2"
  io "$tmp/b.qcow2" 'write -P 1 576k 64k' 'write -z 768k 64k'
  compare_maps "$tmp/b.qcow2"
done

# An overlay that is smaller than what is below.
make_image "$tmp/c.qcow2" 2M "backing_file=b.qcow2,backing_fmt=qcow2"
compare_maps "$tmp/c.qcow2"

# What we wrote ourselves.
for options in compat=v3 extended_l2=on; do
  rm -f "$tmp/model.raw"
  make_image "$img" 20M "$options"
  start_nbdkit file="$img"
  model random "$uri" "$tmp/model.raw" --ops 2000
  stop_nbdkit
  compare_maps "$img"
done
