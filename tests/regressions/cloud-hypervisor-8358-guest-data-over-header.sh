#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Cloud Hypervisor, issue 8358: the first 64 KiB of the file are guest data.
#
# A write went to host offset 0, where the header is.  The image could not be opened any
# more; only a copy of the header saved it.
#
# Here an L2 entry says that a guest cluster is at offset 0.
#
# https://github.com/cloud-hypervisor/cloud-hypervisor/issues/8358
# Broken: offset-0-is-a-cluster

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
for entry in 0x8000000000000000 0x8000000000000001; do
  rm -f "$img"
  make_image "$img" 1M
  qemu-io -f qcow2 -c 'write -P 1 0 128k' "$img" > /dev/null
  head -c 65536 "$img" > "$tmp/header"
  header_patch "$img" l2 Q "$entry"
  start_nbdkit file="$img"
  # (The write may fail.)
  nbdsh_run -c 'h.pwrite(b"log of the first boot", 0); h.flush()' || :
  nbdsh_run -c 'h.zero(65536, 0); h.trim(65536, 0); h.flush()' || :
  nbdsh_run -c 'assert h.pread(65536, 65536) == b"\1" * 65536'
  stop_nbdkit
  # Only the features in the header may have changed.
  cmp -n 72 "$img" "$tmp/header"
  cmp -i 80 -n 65456 "$img" "$tmp/header"
  start_nbdkit file="$img" untrusted=true
  nbdsh_run -c 'assert b"QFI" not in h.pread(4096, 0)' || :
  stop_nbdkit
done
