#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# kill -9 at random moments, again and again on the same image: the image is never corrupt
# (leaks are allowed), flushed data is there, and each sector of unflushed data has its
# old or its new contents.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/base.raw" $((6 << 20))
truncate -s 8M "$tmp/base.raw"

sample 2 64k:16:no: 4k:16:yes:l2-cache=8K 512:64:no:l2-cache=4K 64k:1:yes: 2M:8:no: \
  64k,extended_l2=on:16:yes:
for row in "${sample[@]}"; do
  IFS=: read -r cluster bits backing parameters <<< "$row"
  img="$tmp/a.qcow2"
  create="cluster_size=$cluster,refcount_bits=$bits"
  base=()
  if [ "$backing" = yes ]; then
    create+=",backing_file=base.raw,backing_fmt=raw"
    base=(--base "$tmp/base.raw")
  fi
  make_image "$img" 8M "$create"
  rm -f "$tmp/state"
  for round in 1 2 3 4; do
    echo "round $round"
    # shellcheck disable=SC2086
    start_nbdkit file="$img" $parameters
    model crash "$uri" "$tmp/state" --pid "$nbdkit_pid" --ops 1500 \
      --cluster "${cluster%,*}" --weights flush=5
    wait "$nbdkit_pid" || :
    unset "server_pid[main]"
    check_leaks_only "$img"
    qemu-img convert -f qcow2 -O raw "$img" "$tmp/after.raw"
    model judge "$tmp/state" "$tmp/after.raw" "${base[@]}"
  done

  # Our own eyes see the same, and after a clean end there are no leaks.
  start_nbdkit file="$img"
  model verify "$uri" "$tmp/after.raw"
  model random "$uri" "$tmp/after.raw" --ops 500 --cluster "${cluster%,*}"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/after.raw"
done
