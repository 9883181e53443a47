#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Images with an external data file, ordinary and raw: random requests, then qemu-img
# judges; a raw data file is also compared with the model directly.  QEMU writes before
# the server, and reads and writes after it.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2" data="$tmp/a.data"

# judge [RAW]
judge ()
{
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
  # All that the guest wrote is there and not in the image.
  [ "$(file_size "$img")" -lt $((6 * $(numfmt --from=iec "${cluster^^}") + (3 << 19))) ]
  if [ -n "${1:-}" ]; then
    # QEMU makes it a multiple of the cluster size.
    [ "$(file_size "$data")" -ge "$(file_size "$tmp/model.raw")" ]
    cmp -n "$(file_size "$tmp/model.raw")" "$data" "$tmp/model.raw"
    qemu-img info "$img" | grep -q 'data file raw: true'
  fi
}

serve ()
{
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/model.raw"
  start_nbdkit file="$img"
  model random "$uri" "$tmp/model.raw" --seconds 0.2 --connections 3 \
    --cluster "$cluster"
  stop_nbdkit
}

qemu_writes ()
{
  qemu-io -f qcow2 -d unmap -c 'write -P 1 0 300k' -c 'write -P 2 1000001 70001' \
    -c 'write -z 64k 64k' -c 'write -z -u 128k 64k' -c 'write -z 0 5k' \
    -c 'discard 192k 64k' -c 'write -P 3 2M 1' "$img" >/dev/null
}

sample 1 512 64k 2M
for cluster in "${sample[@]}"; do
  for how in off metadata raw subclusters raw-subclusters; do
    # At least 512 bytes each, and once is enough.
    if [[ "$how" = *subclusters && "$cluster" != 64k ]]; then continue; fi
    rm -f "$img" "$data"
    opts="data_file=$data,cluster_size=$cluster"
    case "$how" in
      raw) opts+=",data_file_raw=on"; raw=raw ;;
      subclusters) opts+=",extended_l2=on"; raw='' ;;
      raw-subclusters) opts+=",extended_l2=on,data_file_raw=on"; raw=raw ;;
      *) opts+=",preallocation=$how"; raw='' ;;
    esac
    # Not a multiple of the larger cluster sizes.
    make_image "$img" 4195328 "$opts"
    if [ "$how" = off ]; then
      # Nothing of what is there belongs to the disk.
      random_file "$data" 2500000
      qemu-io -r -f qcow2 -c 'read -P 0 0 4195328' "$img"
    else
      qemu_writes
    fi
    serve
    judge $raw

    # QEMU goes on, and we read what it wrote.
    qemu_writes
    qemu-img convert -f qcow2 -O raw "$img" "$tmp/model.raw"
    start_nbdkit file="$img"
    model verify "$uri" "$tmp/model.raw"
    stop_nbdkit
  done
done
