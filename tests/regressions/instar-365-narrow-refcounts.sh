#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# instar, issue 365: images with refcounts of 1, 2 or 4 bits are corrupt after a resize.
#
# The bits of refcounts that are smaller than a byte were packed from the wrong end, and
# some code took every refcount for 16 bits.
#
# https://shakenfist.com/components/instar/plans/PLAN-bug-fixes-phase-03-qcow2-shrink-subbyte-refcount/
# Broken: narrow-refcounts-from-the-wrong-end

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
for bits in 1 2 4 8 64; do
  rm -f "$img"
  make_image "$img" 16M "refcount_bits=$bits"
  qemu-io -f qcow2 -c 'write -P 7 0 64k' -c 'write -P 9 12M 128k' "$img" > /dev/null
  start_and_end file="$img" resize=8M shrink=true
  check_clean "$img"
  start_nbdkit file="$img"
  nbdsh_run -c 'h.pwrite(b"x" * 300000, 4 << 20); h.flush(); h.trim(65536, 4 << 20)'
  stop_nbdkit
  check_clean "$img"
  qemu-io -r -f qcow2 -c 'read -P 7 0 64k' -c 'read -P 0 64k 1M' "$img"
done
