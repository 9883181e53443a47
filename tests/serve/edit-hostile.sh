#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Images with damaged metadata: changes are refused with one line, and nothing changes.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

img="$tmp/a.qcow2"
make_image "$tmp/good.qcow2" 4M cluster_size=4k
qemu-io -f qcow2 -c 'write -P 1 0 1M' "$tmp/good.qcow2"
qemu-img snapshot -c s "$tmp/good.qcow2"
qemu-io -f qcow2 -c 'write -P 2 0 1M' "$tmp/good.qcow2"

# damaged PATTERN PATCH... -- PARAMETER...
damaged ()
{
  local pattern="$1" before
  local -a patch=()
  shift
  while [ "$1" != -- ]; do patch+=("$1"); shift; done
  shift
  cp "$tmp/good.qcow2" "$img"
  header_patch "$img" "${patch[@]}"
  before="$(sha256sum < "$img")"
  refused "$pattern" "$img" "$@"
  [ "$(sha256sum < "$img")" = "$before" ]
}

for edit in snapshot-create=t snapshot-delete=s snapshot-apply=s; do
  damaged 'L2 table at|names an L2 table' l1 Q 512 -- $edit
  damaged 'names an L2 table at' l1 Q $((1 << 40)) -- $edit
  damaged 'overlaps the refcount' l1 Q 4096 -- $edit
  damaged 'the header' l2 Q 0x8000000000000000 rb H 0 -- $edit
  damaged 'names a block|corrupt' rt Q 512 -- $edit
  damaged 'marked corrupt' 79 B '|2' -- $edit
done
for edit in snapshot-create=t snapshot-apply=s; do
  damaged 'overlaps the' l2 Q 0x8000000000001000 -- $edit
  damaged 'not aligned' l2 Q 0x8000000000002200 -- $edit
  # In use, and not counted.
  damaged 'in use but its reference count is 0|overlaps the' l2 Q $((1 << 40)) -- $edit
done
snapshots=$((0x$(od -An -tx1 -j64 -N8 "$tmp/good.qcow2" | tr -d ' ')))
damaged 'snapshot table' "$snapshots" Q 512 -- snapshot-apply=s
damaged 'snapshot table' "$snapshots" Q $((1 << 50)) -- snapshot-delete=s
damaged 'snapshot table' $((snapshots + 8)) I $((1 << 31)) -- snapshot-apply=s
# The table itself is not counted.
for edit in snapshot-create=t snapshot-delete=s; do
  damaged 'in use but its reference count is 0' rb+$((snapshots / 4096 * 2)) H 0 -- $edit
done
# Of a disk that no image can have.
damaged 'snapshot is of a disk' $((snapshots + 48)) Q $((1 << 60)) -- snapshot-apply=s
damaged 'overlaps the' l2+8 Q 0x8000000000001000 -- resize=512 shrink=true
