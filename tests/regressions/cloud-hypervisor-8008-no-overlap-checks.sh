#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Cloud Hypervisor, issue 8008: metadata is not protected from guest data.
#
# If an L2 entry of a damaged or forged image leads to metadata, a guest can write its own
# header or tables.
#
# https://github.com/cloud-hypervisor/cloud-hypervisor/issues/8008
# Broken: no-overlap-checks

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/good.qcow2" 1M
qemu-io -f qcow2 -c 'write -P 1 0 128k' "$tmp/good.qcow2" > /dev/null
img="$tmp/a.qcow2"
for place in l1 l2 rt rb; do
  cp "$tmp/good.qcow2" "$img"
  offset="$(header_patch "$img" | sed -n "s/^$place //p")"
  # Guest cluster 0 is there, says the entry, and belongs to this disk alone.
  header_patch "$img" l2 Q "$offset" l2 Q '|0x8000000000000000'
  dd if="$img" of="$tmp/before" bs=64k skip=$((offset / 65536)) count=1 status=none
  start_nbdkit file="$img"
  nbdsh_run -c 'h.pwrite(b"x" * 65536, 0)' -c 'h.flush()' || :
  nbdsh_run -c 'h.zero(65536, 0, nbd.CMD_FLAG_NO_HOLE)' -c 'h.flush()' || :
  nbdsh_run -c 'h.trim(65536, 0)' -c 'h.flush()' || :
  stop_nbdkit || :
  dd if="$img" of="$tmp/after" bs=64k skip=$((offset / 65536)) count=1 status=none
  cmp "$tmp/before" "$tmp/after"
  start_nbdkit file="$img" untrusted=true
  nbdsh_run -c 'assert h.pread(65536, 65536) == b"\1" * 65536'
  if nbdsh_run -c 'h.pread(65536, 0)'; then fail "read the $place as data"; fi
  stop_nbdkit
done
