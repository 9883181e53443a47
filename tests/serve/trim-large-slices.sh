#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Trimming a large range at once, with slices of many entries, frees exactly the clusters
# that were in use.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
for slice in 4K 32K 64K; do
  for request in 'h.trim(1 << 30, 0)' 'h.zero(1 << 30, 0)'; do
    make_image "$img" 1G preallocation=metadata
    start_nbdkit file="$img" l2-slice="$slice"
    # The same slices as they are when they were looked at before, and not.
    nbdsh_run -c 'h.pread(512, 700 << 20)' -c "$request" -c 'h.flush()'
    stop_nbdkit
    check_clean "$img"
    echo "ok: $slice, $request"
  done
done
