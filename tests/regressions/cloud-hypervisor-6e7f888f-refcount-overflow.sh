#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Cloud Hypervisor, commit 6e7f888f5d17: a refcount that does not fit is cut off.
#
# With refcounts of 1 bit, a cluster with a second reference got refcount 0, and was free.
#
# https://github.com/cloud-hypervisor/cloud-hypervisor/commit/6e7f888f5d17
# Broken: refcounts-wrap

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
for bits in 1 2; do
  rm -f "$img"
  make_image "$img" 1M "refcount_bits=$bits"
  qemu-io -f qcow2 -c 'write -P 1 0 128k' "$img" > /dev/null
  # As many snapshots as can be counted, and one more.
  for ((i = 1; i < 1 << bits; ++i)); do
    if [ "$i" -eq $(((1 << bits) - 1)) ]; then
      refused_untouched 'refcount' "$img" snapshot-create="s$i"
    else
      start_and_end file="$img" snapshot-create="s$i"
    fi
  done
  check_clean "$img"
  # Compressed clusters share host clusters, as far as that can be counted.
  start_nbdkit file="$img" compress=on
  nbdsh_run -c 'h.pwrite(b"c" * 524288, 262144); h.flush()' || :
  nbdsh_run -c 'assert h.pread(131072, 0) == b"\1" * 131072'
  stop_nbdkit
  check_clean "$img"
  qemu-io -r -f qcow2 -c 'read -P 1 0 128k' "$img"
done
