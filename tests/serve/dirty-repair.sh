#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image that QEMU left dirty (lazy refcounts, then a crash) is repaired when the first
# client connects that may write: afterwards it has no faults and no leaks, and contains
# what QEMU reads after its own repair.  With -r not a byte of it changes.  An image that
# new refcounts cannot repair is served read-only.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

img="$tmp/a.qcow2"

# qemu_crash IMAGE COMMAND...: qemu-io does this, and then dies.
qemu_crash ()
{
  local image="$1" command
  local -a script=()
  shift
  for command; do script+=(-c "$command"); done
  (
    ulimit -c 0
    qemu-io -d unmap -f qcow2 "${script[@]}" -c flush -c abort "$image" || :
  ) > "$tmp/qemu-io.log" 2>&1
  if grep -i 'failed\|error\|invalid' "$tmp/qemu-io.log"; then return 1; fi
  is_dirty "$image"
}

# What QEMU makes of it, without -U's doubts: on a copy.
qemu_reads ()
{
  cp --sparse=always "$1" "$tmp/copy.qcow2"
  qemu-img check -q -r all "$tmp/copy.qcow2"
  qemu-img convert -f qcow2 -O raw "$tmp/copy.qcow2" "$2"
  rm "$tmp/copy.qcow2"
}

number=0
dirty_image ()                  # OPTIONS SETUP
{
  local create="$1" setup="$2" i
  local -a writes=()

  rm -f "$img"
  make_image "$img" 16M "lazy_refcounts=on,$create"
  case "$setup" in
    compressed)
      qemu-io -f qcow2 -c 'write -c -P 1 0 64k' -c 'write -c -P 2 64k 64k' \
        -c 'write -c -P 3 2M 192k' -c 'write -P 9 1M 64k' "$img" ;;
    snapshot)
      qemu-io -f qcow2 -c 'write -P 1 0 3M' "$img"
      qemu-img snapshot -c one "$img"
      qemu-io -f qcow2 -c 'write -P 2 1M 300k' "$img"
      qemu-img snapshot -c two "$img" ;;
  esac
  for i in 1 2 3 4 5 6 7 8; do
    number=$((number + 7919))
    writes+=("write -P $((i + 16)) $((number * 1021 % 15000000)) \
      $((number % 200000 + 1))")
  done
  qemu_crash "$img" 'write -P 5 0 1k' "${writes[@]}" 'discard 512k 256k' \
    'write -z 5M 1M' 'write -zu 64k 128k' 'write -P 77 700k 10k'
}

sample 4 : refcount_bits=1: refcount_bits=64: cluster_size=512: \
  cluster_size=512,refcount_bits=64: cluster_size=2M: \
  cluster_size=4k,refcount_bits=8:snapshot cluster_size=512:snapshot \
  :snapshot :compressed cluster_size=4k,refcount_bits=32:compressed \
  extended_l2=on,cluster_size=16k:snapshot
for row in "${sample[@]}"; do
  create="${row%:*}" setup="${row#*:}" cluster=64k
  if [[ "$create" =~ cluster_size=([^,]*) ]]; then cluster="${BASH_REMATCH[1]}"; fi
  dirty_image "${create:-compat=v3}" "$setup"
  qemu_reads "$img" "$tmp/expected.raw"
  if [ "$setup" = snapshot ]; then
    for s in one two; do
      qemu-img convert -l "$s" -f qcow2 -O raw "$img" "$tmp/$s.raw"
    done
  fi

  # Read-only: no change.
  before=$(fingerprint "$img")
  start_nbdkit -r -- file="$img"
  nbdinfo --is readonly "$uri"
  model verify "$uri" "$tmp/expected.raw"
  stop_nbdkit
  [ "$before" = "$(fingerprint "$img")" ]

  # A reader alone does not repair, either.
  cp --sparse=always "$img" "$tmp/b.qcow2"
  start_nbdkit file="$img"
  [ "$before" = "$(fingerprint "$img")" ]
  nbdinfo --can write "$uri"
  model verify "$uri" "$tmp/expected.raw"
  if is_dirty "$img"; then fail "still dirty"; fi
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/expected.raw"

  # And it can be written like any other.
  start_nbdkit file="$tmp/b.qcow2"
  cp "$tmp/expected.raw" "$tmp/model.raw"
  model random "$uri" "$tmp/model.raw" --ops 100 --cluster "$cluster"
  stop_nbdkit
  if is_dirty "$tmp/b.qcow2"; then fail "dirty after a clean end"; fi
  check_clean "$tmp/b.qcow2"
  same_as_raw "$tmp/b.qcow2" "$tmp/model.raw"
  if [ "$setup" = snapshot ]; then
    for s in one two; do
      qemu-img convert -l "$s" -f qcow2 -O raw "$tmp/b.qcow2" "$tmp/after.raw"
      cmp "$tmp/$s.raw" "$tmp/after.raw"
    done
  fi
done

# Refcounts that make no sense at all: they are not even looked at.
dirty_image compat=v3 none
qemu_reads "$img" "$tmp/expected.raw"
header_patch "$img" 65536 Q 0x123 65544 Q 0x7fffffff0000
start_nbdkit file="$img"
model verify "$uri" "$tmp/expected.raw"
stop_nbdkit
check_clean "$img"
same_as_raw "$img" "$tmp/expected.raw"

# A file so large that its clusters are not all counted at once: a cluster far away.
dirty_image cluster_size=512 none
l1=$((0x$(od -An -tx1 -j40 -N8 "$img" | tr -d ' ')))
l2=$((0x$(od -An -tx1 -j$l1 -N8 "$img" | tr -d ' ') & 0xfffffffffffe00))
truncate -s 30G "$img"
printf '%512s' far | dd of="$img" bs=512 seek=$((20 << 21)) conv=notrunc status=none
header_patch "$img" "$l2" Q $((20 << 30))
start_nbdkit file="$img"
nbdinfo --can write "$uri"
stop_nbdkit
check_clean "$img"
qemu-img convert -f qcow2 -O raw "$img" "$tmp/far.raw"
[ "$(dd if="$tmp/far.raw" bs=512 count=1 status=none | tr -d ' ')" = far ]
rm "$img"

# What cannot be repaired is left as it is, and served read-only: an L2 entry that names
# the L1 table, one beyond the end of the file, one that is not aligned, an L1 entry.
dirty_image compat=v3 none
l1=$((0x$(od -An -tx1 -j40 -N8 "$img" | tr -d ' ')))
l2=$((0x$(od -An -tx1 -j$l1 -N8 "$img" | tr -d ' ') & 0xfffffffffffe00))
entry=$((l2 + 8 * 200))
for row in "$entry:$l1:other metadata" "$entry:$((1 << 40)):beyond the end" \
           "$entry:$((l2 + 512)):not aligned" "$l1:$((1 << 40)):beyond the end" \
           "$entry:$l2:L2 table"; do
  IFS=: read -r at value message <<< "$row"
  cp --sparse=always "$img" "$tmp/b.qcow2"
  header_patch "$tmp/b.qcow2" "$at" Q "$value"
  before=$(fingerprint "$tmp/b.qcow2")
  start_nbdkit file="$tmp/b.qcow2"
  nbdinfo --is readonly "$uri"
  nbdinfo --is readonly "$uri"
  grep "cannot be repaired, so it cannot be changed: .*$message" "${server_log[main]}"
  # (The others are for the client.)
  [ "$(grep -vc 'the export was opened' "${server_log[main]}")" = 1 ]
  stop_nbdkit
  # Nor is it changed before it is served, and then nothing is served.
  for edit in snapshot-create=s resize=+1M bitmap-add=b; do
    refused "cannot be repaired, so it cannot be changed: .*$message" "$tmp/b.qcow2" $edit
  done
  [ "$before" = "$(fingerprint "$tmp/b.qcow2")" ]
done
