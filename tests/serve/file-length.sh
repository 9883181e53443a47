#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# After a clean stop a file ends where its data ends: writes to a new image make it no
# longer than QEMU does, except for the few clusters that are reserved for L2 tables and
# refcounts.  Clusters allocated ahead are given back.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

theirs="$tmp/theirs.qcow2"
ours="$tmp/ours.qcow2"

# compare_lengths NAME COMMAND...: what qemu-io does to both.
compare_lengths ()
{
  local name="$1" at
  local -a commands=()
  shift
  for at in "$@"; do commands+=(-c "$at" -c flush); done
  make_image "$theirs" 64M "cluster_size=$cluster,refcount_bits=$bits"
  make_image "$ours" 64M "cluster_size=$cluster,refcount_bits=$bits"
  qemu-io -f qcow2 "${commands[@]}" "$theirs"
  start_nbdkit file="$ours"
  qemu-io -f raw "${commands[@]}" "$uri"
  stop_nbdkit
  check_clean "$ours"
  local more=$(( $(stat -c %s "$ours") - $(stat -c %s "$theirs") ))
  # Tables lie side by side in runs of 64K; blocks are made for 1M to 8M at a time.
  [ "$more" -le $(( (80 << 10) + (blocks << 10) )) ] ||
    fail "clusters of $cluster, $bits bits, $name: $more bytes longer than QEMU's"
}

for cluster in 512 1k 2k 4k 8k 16k 64k 2M; do
  for bits in 16 64; do
    # A block of 512 bytes counts 32K with 64 bits: so many K for those of 8M.
    case "$cluster-$bits" in
      512-64) blocks=160 ;;
      *-64) continue ;;
      *) blocks=16 ;;
    esac
    compare_lengths 'one write' 'write 0 4k'
    compare_lengths 'some writes' 'write 0 64k' 'write 10M 64k' 'write 30M 100k' \
      'write 20M 4k'
  done
  bits=16
  compare_lengths 'much' 'write 0 3M' 'write 5M 5M' 'write 20M 1M'
done
