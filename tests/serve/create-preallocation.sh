#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Preallocated images: every cluster is allocated, in order, and the disk is empty; falloc
# and full allocate space on the host; backing files are allowed where QEMU allows them;
# and encrypted disks read as zeros, not as noise.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

size=20971520           # with refcounts of all widths, and partial tables

# make FILE PARAMETER...
make ()
{
  local img="$1"
  shift
  "$NBDKIT" -U - "$PLUGIN" "$img" create="$size" "$@" --run :
}

# All guest data lie in one piece of the file.
in_order ()
{
  qemu-img map --output=json "$1" | "$python" -c '
import json, sys
start = None
for extent in json.load(sys.stdin):
    if "offset" not in extent:
        sys.exit("not allocated: %r" % extent)
    at = extent["offset"] - extent["start"]
    if start is not None and at != start:
        sys.exit("out of order: %r" % extent)
    start = at'
}

qemu-img create -q -f raw "$tmp/zeros" "$size"
sample 2 512 4K 64K 2M
for cluster in "${sample[@]}"; do
  for bits in 1 2 4 8 16 32 64; do
    case "$cluster-$bits" in
      512-*) which='metadata falloc full' ;;
      *-16) which='metadata falloc full' ;;
      *-1|*-4|*-64) which='metadata' ;;
      *) continue ;;
    esac
    for preallocation in $which; do
      img="$tmp/a.qcow2"
      rm -f "$img"
      make "$img" cluster-size="$cluster" refcount-bits="$bits" \
        preallocation="$preallocation"
      check_clean "$img"
      in_order "$img"
      case "$preallocation" in
        metadata) [ "$(allocated_kib "$img")" -lt 8000 ] ;;
        *) [ "$(( $(allocated_kib "$img") * 1024 ))" -ge "$(file_size "$img")" ] ;;
      esac
      [ "$bits" = 16 ] || continue
      qemu-img compare -q "$img" "$tmp/zeros"
      # What QEMU makes of it, and we: nothing new is needed.
      before=$(file_size "$img")
      qemu-io -f qcow2 -c 'write -P 1 1000000 3000000' "$img"
      start_nbdkit "$img"
      nbdsh_run -c '
h.pwrite(b"\2" * 3000000, 7654321)
assert h.pread(3000000, 1000000) == b"\1" * 3000000
assert h.pread(3000000, 7654321) == b"\2" * 3000000
assert h.pread(3654321, 4000000) == bytes(3654321)'
      stop_nbdkit
      check_clean "$img"
      [ "$(file_size "$img")" = "$before" ]
    done
  done
done

# Version 2, and a disk that ends within a cluster.
size=10000384
for preallocation in metadata falloc full; do
  rm -f "$tmp/a.qcow2"
  make "$tmp/a.qcow2" compat=0.10 preallocation="$preallocation"
  check_clean "$tmp/a.qcow2"
  in_order "$tmp/a.qcow2"
done

# Subclusters, without and with something below, which shows through.
make_image "$tmp/base.qcow2" "$size"
qemu-io -f qcow2 -c 'write -P 7 0 5M' "$tmp/base.qcow2"
for preallocation in metadata falloc full; do
  for below in '' "backing-file=base.qcow2 backing-format=qcow2"; do
    rm -f "$tmp/b.qcow2"
    under="${below:+7}"
    under="${under:-0}"
    # shellcheck disable=SC2086
    make "$tmp/b.qcow2" extended-l2=true preallocation="$preallocation" $below
    check_clean "$tmp/b.qcow2"
    if [ -n "$below" ]; then
      qemu-img compare -q "$tmp/b.qcow2" "$tmp/base.qcow2"
    else
      qemu-img create -q -f raw "$tmp/zeros" "$size"
      qemu-img compare -q "$tmp/b.qcow2" "$tmp/zeros"
    fi
    before=$(file_size "$tmp/b.qcow2")
    qemu-io -f qcow2 -c 'write -P 1 1000000 3000000' "$tmp/b.qcow2"
    start_nbdkit "$tmp/b.qcow2"
    nbdsh_run -c 'h.pwrite(b"\2" * 1000000, 4567890)'
    stop_nbdkit
    qemu-io -f qcow2 -c 'read -P 1 1000000 3000000' -c 'read -P 2 4567890 1000000' \
      -c "read -P $under 0 1000000" "$tmp/b.qcow2" | tee "$tmp/out"
    if grep -q failed "$tmp/out"; then fail "wrong data"; fi
    check_clean "$tmp/b.qcow2"
    [ "$(file_size "$tmp/b.qcow2")" = "$before" ]
  done
done
