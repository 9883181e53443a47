#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU, commits 381b487d54 and a94a3fac19 (2013): migration and rebase bring back the
# backing file's data.
#
# Zero clusters counted as unallocated, so what was copied had the backing file's data
# where the guest had written zeros.
#
# https://git.cs.tu-dortmund.de/SYS-OSS/FRET-qemu/src/commit/381b487d54ba18c73df9db8452028a330058c505/block
# Broken: zero-clusters-taken-for-unallocated

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/base.raw" $((1 << 20))
for options in compat=v3 extended_l2=on; do
  rm -f "$tmp"/*.qcow2
  make_image "$tmp/middle.qcow2" 1M "backing_file=$tmp/base.raw,backing_fmt=raw,$options"
  start_nbdkit file="$tmp/middle.qcow2"
  nbdsh_run -c 'h.zero(262144, 131072); h.zero(4096, 524288)'
  stop_nbdkit
  qemu-img convert -f qcow2 -O raw "$tmp/middle.qcow2" "$tmp/before.raw"
  make_image "$tmp/top.qcow2" 1M "backing_file=$tmp/middle.qcow2,backing_fmt=qcow2"
  cp "$tmp/top.qcow2" "$tmp/flat.qcow2"

  start_nbdkit file="$tmp/top.qcow2" copy-on-read=true
  nbdcopy "$uri" "$tmp/out.raw"
  stop_nbdkit
  cmp "$tmp/out.raw" "$tmp/before.raw"
  same_as_raw "$tmp/top.qcow2" "$tmp/before.raw"

  start_and_end file="$tmp/flat.qcow2" flatten=true
  same_as_raw "$tmp/flat.qcow2" "$tmp/before.raw"
  check_clean "$tmp/flat.qcow2"
done
