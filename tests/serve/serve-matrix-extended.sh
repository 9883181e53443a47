#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Random requests on images with extended L2 entries: clusters of 16k, 64k and 2M, all
# refcount widths, over data in a backing file or an internal snapshot.  Then qemu-img
# judges.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

size=5243392                    # not a multiple of any subcluster but 512
random_file "$tmp/short.raw" 3000320
random_file "$tmp/long.raw" $((size + 100000))
make_image "$tmp/below.qcow2" 6M cluster_size=4k
qemu-img convert -n -f raw -O qcow2 "$tmp/short.raw" "$tmp/below.qcow2"

# row CLUSTER BITS WHAT: WHAT is below, or in it at first.
row ()
{
  local cluster="$1" bits="$2" what="$3" img="$tmp/top.qcow2" kept=""
  local create="extended_l2=on,cluster_size=$cluster,refcount_bits=$bits"

  rm -f "$tmp/model.raw" "$img"
  case $what in
    short|long) create+=",backing_file=$what.raw,backing_fmt=raw" ;;
    below) create+=",backing_file=below.qcow2,backing_fmt=qcow2" ;;
    preallocated) create+=",preallocation=metadata" ;;
    preallocated-short)
      create+=",preallocation=falloc,backing_file=short.raw,backing_fmt=raw" ;;
  esac
  make_image "$img" "$size" "$create"
  if [[ "$what" = snapshot* ]]; then
    # Every second subcluster of some clusters, and the snapshot shares them.
    qemu-io -f qcow2 -c 'write -P 1 0 1M' -c 'write -P 2 1537k 512' \
      -c 'write -P 3 1600k 1k' -c 'write -z 64k 64k' -c 'write -P 4 3M 100k' "$img"
    qemu-img snapshot -c s "$img"
    kept="$tmp/kept.raw"
    qemu-img convert -f qcow2 -O raw -l snapshot.name=s "$img" "$kept"
  fi
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/model.raw"

  start_nbdkit file="$img"
  model random "$uri" "$tmp/model.raw" --seconds 0.35 --connections 3 \
    --cluster "$cluster" | tee "$tmp/out"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
  if [ -n "$kept" ]; then
    qemu-img convert -f qcow2 -O raw -l snapshot.name=s "$img" "$tmp/now.raw"
    cmp "$tmp/now.raw" "$kept"
  fi
  printf 'MATRIX v3 extended cluster_size=%-4s refcount_bits=%-2s %-18s %s\n' \
    "$cluster" "$bits" "$what" "$(tail -n 1 "$tmp/out")"
}

row 16k 1 nothing
row 16k 16 short
row 16k 2 snapshot
row 16k 64 preallocated-short
row 64k 2 nothing
row 64k 8 long
row 64k 16 below
row 64k 32 snapshot
row 64k 4 preallocated
row 2M 4 nothing
row 2M 32 below
row 2M 8 snapshot
row 2M 16 short
