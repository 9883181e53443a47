#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Every internal snapshot is a read-only export, by name or id, with the size that the
# disk had when it was taken.  It does not change while the active disk is written.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"

# contents NAME SIZE: what qemu-img says is in it, cut or filled up to its own size.
contents ()
{
  qemu-img convert -f qcow2 -O raw -l "snapshot.name=$1" "$img" "$tmp/$1.want"
  truncate -s "$2" "$tmp/$1.want"
}

sample 2 512 4k 64k 16k,extended_l2=on
for cluster in "${sample[@]}"; do
  make_image "$img" 2M "cluster_size=$cluster"
  qemu-io -f qcow2 -c 'write -P 1 0 1M' "$img" > /dev/null
  qemu-img snapshot -c one "$img"
  qemu-io -f qcow2 -c 'write -P 2 512k 1M' -c 'discard 0 128k' "$img" > /dev/null
  qemu-img snapshot -c 'second one' "$img"
  qemu-img resize -q "$img" 8M
  qemu-io -f qcow2 -c 'write -P 3 3M 2M' "$img" > /dev/null
  qemu-img snapshot -c large "$img"
  contents one 2M
  contents 'second one' 2M
  contents large 8M

  start_nbdkit file="$img"
  nbdinfo --list "$uri" > "$tmp/list"
  for name in one 'second one' large; do
    grep -q "^export=\"$name\":" "$tmp/list"
  done
  grep -Eq 'description: snapshot of 20[0-9-]+ [0-9:]+ UTC, 2097152 bytes' "$tmp/list"
  [ "$(nbdinfo --size "$(export_uri one)")" = 2097152 ]
  [ "$(nbdinfo --size "$(export_uri second%20one)")" = 2097152 ]
  [ "$(nbdinfo --size "$(export_uri large)")" = 8388608 ]
  [ "$(nbdinfo --size "$uri")" = 8388608 ]
  nbdinfo --is read-only "$(export_uri one)"
  if nbdinfo --is read-only "$uri"; then fail "the active disk is read-only"; fi
  if nbdinfo "$(export_uri nonesuch)" > /dev/null; then fail "nonesuch is served"; fi

  # By name and by id, all at once, while the active disk changes under a load.
  nbdcopy "$uri" "$tmp/model.raw"
  model random "$uri" "$tmp/model.raw" --seconds 3 --cluster "${cluster%,*}" &
  load=$!
  for round in 1 2 3; do
    nbdcopy "$(export_uri one)" "$tmp/one.got" &
    first=$!
    nbdcopy "$(export_uri 2)" "$tmp/two.got" &
    second=$!
    nbdcopy "$(export_uri large)" "$tmp/large.got"
    wait "$first"
    wait "$second"
    cmp "$tmp/one.want" "$tmp/one.got"
    cmp "$tmp/second one.want" "$tmp/two.got"
    cmp "$tmp/large.want" "$tmp/large.got"
    echo "round $round: intact"
  done
  wait "$load"
  nbdcopy "$(export_uri one)" "$tmp/one.got"
  cmp "$tmp/one.want" "$tmp/one.got"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
  contents one 2M
  cmp "$tmp/one.want" "$tmp/one.got"
done

# One of them pinned: it is export "", and there is nothing else.
for key in 'second one' 2; do
  start_nbdkit file="$img" snapshot="$key"
  nbdcopy "$uri" "$tmp/two.got"
  cmp "$tmp/second one.want" "$tmp/two.got"
  nbdinfo --is read-only "$uri"
  if nbdinfo "$(export_uri one)" > /dev/null; then fail "others are served"; fi
  [ "$(nbdinfo --list "$uri" | grep -c ^export=)" = 1 ]
  stop_nbdkit
done
refused 'snapshot' file="$img" snapshot=nonesuch

# Over a backing file, and in an image of version 2.
random_file "$tmp/base.raw" 1048576
qemu-img create -q -f qcow2 -b base.raw -F raw -o compat=v2 "$img"
qemu-io -f qcow2 -c 'write -P 4 64k 64k' "$img" > /dev/null
qemu-img snapshot -c old "$img"
qemu-io -f qcow2 -c 'write -P 5 0 256k' "$img" > /dev/null
contents old 1M
start_nbdkit file="$img"
nbdcopy "$(export_uri old)" "$tmp/old.got"
cmp "$tmp/old.want" "$tmp/old.got"
stop_nbdkit
check_clean "$img"
