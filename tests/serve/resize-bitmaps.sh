#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# resize= gives persistent bitmaps the length of the disk as qemu-img resize does: added
# space is not marked as changed, even if bits past the old end were set, but for the rest of
# the cluster in which the disk ended; the other bits are kept.  Enabled and disabled bitmaps
# remain usable.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version
requires qemu-nbd --version

img="$tmp/a.qcow2"
qemus="$tmp/b.qcow2"

where ()
{
  "$python" "$srcdir/lib/bitmaps.py" where "$img" "$1"
}

# flags_of NAME FILE
flags_of ()
{
  qemu-img info -f qcow2 --output=json "$2" | "$python" -c '
import json, sys
data = json.load(sys.stdin)["format-specific"]["data"]
print([b["flags"] for b in data["bitmaps"] if b["name"] == sys.argv[1]])' "$1"
}

# both SIZE: we and QEMU.
both ()
{
  local old new rest

  old="$(virtual_size "$img")" new="$(bytes_of "$1")"
  cp --sparse=always "$img" "$qemus"
  "$NBDKIT" -U - "$PLUGIN" "$img" resize="$1" shrink=true --run true
  qemu-img resize -q --shrink -f qcow2 "$qemus" "$1"
  # QEMU does not zero the end of a cluster in which the disk ended.
  rest=$((-old & (cluster_bytes - 1)))
  if [ "$new" -gt "$old" ] && [ $rest != 0 ]; then
    if [ $((old + rest)) -gt "$new" ]; then rest=$((new - old)); fi
    qemu-io -f qcow2 -c "write -q $old $rest" "$qemus"
  fi
  check_clean "$img"
  same_bitmaps
}

# bytes_of SIZE
bytes_of ()
{
  numfmt --from=iec "${1^^}"
}

same_bitmaps ()
{
  local b

  for b in $names; do
    bitmap_map "$img" "$b" > "$tmp/ours"
    bitmap_map "$qemus" "$b" | diff "$tmp/ours" -
    [ "$(flags_of "$b" "$img")" = "$(flags_of "$b" "$qemus")" ]
  done
}

# Cluster size, backing file, size, and others: their tables get more entries and fewer.
sample 2 512::2000384:2000896:6M:4195328 4k::1000448:300M:129M \
  64k:base:1000448:10G:300M 64k::1000448:1G 2M::3M:100G:8G
for row in "${sample[@]}"; do
  IFS=: read -r cluster base size others <<< "$row"
  rm -f "$img"
  options=(-o "cluster_size=$cluster")
  if [ "$base" ]; then
    : > "$tmp/base"
    options+=(-b base -F raw)
  fi
  qemu-img create -q -f qcow2 "${options[@]}" "$img" "$size"
  cluster_bytes="$(bytes_of "$cluster")"
  names="fine still coarse none"
  qemu-img bitmap --add -g 512 "$img" fine
  qemu-img bitmap --add -g 512 "$img" still
  qemu-img bitmap --add -g 1M "$img" coarse
  bytes="$(virtual_size "$img")"
  qemu-io -f qcow2 -c 'write 4k 1k' -c "write $((bytes - 1024)) 1k" "$img"
  qemu-img bitmap --disable "$img" still
  qemu-img bitmap --add -g 512 "$img" none
  for size in ${others//:/ }; do
    both "$size"
    # The new end is written to, so that it is cut off or grown over next time.
    bytes="$(virtual_size "$img")"
    start_nbdkit "$img"
    nbdsh_run -c "h.pwrite(b'x' * 700, $bytes - 700); h.flush()"
    stop_nbdkit main
    check_clean "$img"
    bitmap_map "$img" fine | tail -n 1 | grep -E ' 1  *dirty$'
  done
  # They can all go again.
  for b in $names; do qemu-img bitmap --remove "$img" "$b"; done
  check_clean "$img"
done

# Space that is added as data is marked even if no bit is added.
for cluster in 512 64k; do
  rm -f "$img"
  make_image "$img" 1000448 cluster_size=$cluster
  qemu-img bitmap --add -g 1M "$img" coarse
  "$NBDKIT" -U - "$PLUGIN" "$img" resize=1000960 preallocation=metadata --run true
  bitmap_map "$img" coarse | grep -E ' 1  *dirty$'
  check_clean "$img"
done

# "All ones" without a cluster, and bits that are set behind the end.
names="fine still"
for bits in 1 data; do
  rm -f "$img"
  make_image "$img" 1M cluster_size=512
  for b in $names; do qemu-img bitmap --add -g 512 "$img" "$b"; done
  read -r _ table _ <<< "$(where fine)"
  header_patch "$img" "$table" Q 1
  if [ "$bits" = data ]; then
    qemu-io -f qcow2 -c 'write 0 1M' "$img"
    read -r _ _ data <<< "$(where still)"
    [ "$data" != 0 ]
    head -c 512 /dev/zero | tr '\0' '\377' |
      dd of="$img" bs=512 seek=$((data / 512)) conv=notrunc status=none
  fi
  "$NBDKIT" -U - "$PLUGIN" "$img" resize=1537k --run true
  check_clean "$img"
  bitmap_map "$img" fine | grep -E '^ *0 +1048576 +1 '
  bitmap_map "$img" fine | grep -E '^ *1048576 +525312 +0 '
  "$NBDKIT" -U - "$PLUGIN" "$img" resize=700k shrink=true --run true
  check_clean "$img"
  "$NBDKIT" -U - "$PLUGIN" "$img" resize=9M --run true
  check_clean "$img"
  bitmap_map "$img" fine | grep -E '^ *0 +716800 +1 '
  bitmap_map "$img" fine | grep -E '^ *716800 +8720384 +0 '
done

# One that is void stays so, byte for byte, and can be removed; the other one goes on.
read -r entry table _ <<< "$(where still)"
header_patch "$img" $((entry + 12)) I '|1'
before="$(od -An -tx1 -j"$entry" -N 32 "$img"; od -An -tx1 -j"$table" -N 512 "$img")"
"$NBDKIT" -U - "$PLUGIN" "$img" resize=40M --run true
check_clean "$img"
read -r entry now _ <<< "$(where still)"
[ "$now" = "$table" ]
[ "$before" = "$(od -An -tx1 -j"$entry" -N 32 "$img"; od -An -tx1 -j"$table" -N 512 "$img")" ]
bitmap_map "$img" fine | grep -E '^ *716800 +41226240 +0 '
start_nbdkit "$img"
nbdinfo --is readonly "$uri" && fail "it is read-only"
stop_nbdkit main
qemu-img bitmap --remove "$img" still
check_clean "$img"

# No more than QEMU can load.
rm -f "$img"
make_image "$img" 1M
qemu-img bitmap --add -g 512 "$img" fine
before="$(sha256sum < "$img")"
refused 'bitmap "fine": it would need more than 512M' "$img" resize=3T
[ "$(sha256sum < "$img")" = "$before" ]
