#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Writes to an image with internal snapshots do not change the snapshots.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

same_as_snapshot ()
{
  qemu-img convert -f qcow2 -O raw -l "snapshot.name=$2" "$1" "$tmp/snapshot.raw"
  cmp "$tmp/snapshot.raw" "$3"
}

sample 2 v2:64k:16 v3:64k:16 v3:4k:2 v3:512:64 v3:2M:8 \
  v3,extended_l2=on:16k:4
for row in "${sample[@]}"; do
  IFS=: read -r compat cluster bits <<< "$row"
  img="$tmp/a.qcow2"
  create="compat=$compat,cluster_size=$cluster"
  [ "$compat" = v2 ] || create+=",refcount_bits=$bits"
  rm -f "$tmp/model.raw"
  make_image "$img" 3M "$create"
  for step in one two three; do
    start_nbdkit file="$img"
    model random "$uri" "$tmp/model.raw" --seconds 0.35 --cluster "$cluster"
    stop_nbdkit
    check_clean "$img"
    for snapshot in one two; do
      if [ -e "$tmp/$snapshot.raw" ]; then
        same_as_snapshot "$img" "$snapshot" "$tmp/$snapshot.raw"
      fi
    done
    if [ "$step" != three ]; then
      qemu-img snapshot -c "$step" "$img"
      cp "$tmp/model.raw" "$tmp/$step.raw"
    fi
  done
  same_as_raw "$img" "$tmp/model.raw"
  qemu-img snapshot -d one "$img"
  check_clean "$img"
  same_as_snapshot "$img" two "$tmp/two.raw"
  qemu-img snapshot -a two "$img"
  same_as_raw "$img" "$tmp/two.raw"
  start_nbdkit file="$img"
  cp "$tmp/two.raw" "$tmp/model.raw"
  model random "$uri" "$tmp/model.raw" --seconds 0.3 --cluster "$cluster"
  stop_nbdkit
  check_clean "$img"
  same_as_snapshot "$img" two "$tmp/two.raw"
  rm -f "$tmp/one.raw" "$tmp/two.raw"
done
