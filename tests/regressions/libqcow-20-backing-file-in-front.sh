#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# libqcow, issue 20: a long read shows the backing file where the image has data.
#
# Where a range began that only the backing file has, the read took all the rest from
# there, also clusters that the image has itself.  Files in it were missing.
#
# https://github.com/libyal/libqcow/issues/20
# Broken: backing-file-covers-next-cluster

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2" base="$tmp/base.qcow2"
# The same places as in the report: 4 MiB, of which the image has some clusters.
random_file "$tmp/data.raw" $((4 << 20))
qemu-img convert -f raw -O qcow2 "$tmp/data.raw" "$base"
for backing in "$base:qcow2" "$tmp/data.raw:raw"; do
  rm -f "$img"
  make_image "$img" 4M "backing_file=${backing%:*},backing_fmt=${backing##*:}"
  io "$img" 'write -P 1 0 128k' 'write -P 2 512k 64k' 'write -P 3 896k 64k' \
    'write -P 4 1984k 128k' 'write -P 5 4032k 64k'
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/want.raw"
  for mode in "" -r; do
    # shellcheck disable=SC2086
    start_nbdkit $mode -- file="$img"
    # In one request, and in others that begin within the backing file.
    export want="$tmp/want.raw"
    nbdsh_run -c - <<'PY'
import os
want = open(os.environ["want"], "rb").read()
for start in 0, 65536, 200000, 1 << 20:
    if h.pread(len(want) - start, start) != want[start:]:
        raise SystemExit("a read from offset %d shows something else" % start)
PY
    stop_nbdkit
  done
done
