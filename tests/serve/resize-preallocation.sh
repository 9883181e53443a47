#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# resize= with preallocation= allocates all added space, also the part in the cluster
# where the disk ended, whatever kind of cluster that was, as qemu-img resize does.  All
# of it reads as zeros, and old data is kept.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

img="$tmp/a.qcow2"

# all_set_aside FROM TO: bytes.
all_set_aside ()
{
  qemu-img map -f qcow2 --output=json "$img" | "$python" -c '
import json, sys
at, end = map(int, sys.argv[1:])
for e in json.load(sys.stdin):
    if e["start"] <= at < e["start"] + e["length"]:
        if e["depth"] != 0 or "offset" not in e:
            sys.exit("no space is set aside at %d: %s" % (at, e))
        at = e["start"] + e["length"]
assert at >= end, at' "$1" "$2"
}

# Options of the image, length of the backing file or 0, what the last cluster is.
# The disk ends at 100K.
grow ()
{
  local options="$1" below="$2" what="$3" how="$4" new="$5"
  local create=(-q -f qcow2 -o "$options")

  echo "$options, backing file of $below bytes, $what, $how to $new"
  rm -f "$img"
  if [ "$below" != 0 ]; then
    head -c "$below" /dev/zero | tr '\0' b > "$tmp/base"
    create+=(-b base -F raw)
  fi
  qemu-img create "${create[@]}" "$img" 102400
  case "$what" in
    written) qemu-io -f qcow2 -c 'write -P 97 98k 1k' "$img" ;;
    zero) qemu-io -f qcow2 -c 'write -z 64k 36k' "$img" ;;
    compressed) qemu-io -f qcow2 -c 'write -c -P 97 64k 36k' "$img" ;;
    shared) qemu-io -f qcow2 -c 'write -P 97 98k 1k' "$img"
            qemu-img snapshot -c s "$img" ;;
  esac
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/raw"
  truncate -s "$new" "$tmp/raw"
  "$NBDKIT" -U - "$PLUGIN" "$img" resize="$new" preallocation="$how" --run true
  check_clean "$img"
  qemu-img compare -f raw -F qcow2 "$tmp/raw" "$img"
  all_set_aside 102400 "$new"
}

for what in nothing written zero compressed shared; do
  for below in 0 65536 92160 112640 1000000; do
    grow cluster_size=64k $below $what falloc 307200
  done
done
grow cluster_size=64k 65536 nothing metadata 307200
grow cluster_size=64k 65536 nothing full 106496
grow cluster_size=2M 65536 written falloc 3145728
grow cluster_size=64k,extended_l2=on 65536 nothing falloc 307200
grow cluster_size=64k,extended_l2=on 112640 written falloc 106496
grow cluster_size=64k,compat=0.10 65536 nothing falloc 307200

# All options that say how writes are stored are those of the server.
grow cluster_size=64k 0 nothing metadata 106496
rm -f "$img"
qemu-img create -q -f qcow2 "$img" 102400
"$NBDKIT" -U - "$PLUGIN" "$img" resize=200k preallocation=falloc detect-zeroes=unmap \
  compress=on --run true
all_set_aside 102400 204800
check_clean "$img"
