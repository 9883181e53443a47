#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU before 5.1: a disk that grows shows the backing file's data.
#
# "block: truncate: Don't make backing file data visible": where the backing file is
# longer than the disk was, new space must read as zeros.
#
# https://gitlab.com/qemu-project/qemu/-/blob/v5.1.0/tests/qemu-iotests/274
# Broken: growing-uncovers-backing-file

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
random_file "$tmp/data.raw" $((4 << 20))
for options in compat=v3 compat=v2 extended_l2=on; do
  rm -f "$img"
  make_image "$img" 1M "backing_file=$tmp/data.raw,backing_fmt=raw,$options"
  start_and_end file="$img" resize=6M
  check_clean "$img"
  qemu-io -r -f qcow2 -c 'read -P 0 1M 5M' "$img"
  start_nbdkit file="$img"
  nbdcopy "$uri" "$tmp/out.raw"
  stop_nbdkit
  cmp -n $((1 << 20)) "$tmp/out.raw" "$tmp/data.raw"
  cmp -i $((1 << 20)):0 "$tmp/out.raw" <(head -c $((5 << 20)) /dev/zero)
done
