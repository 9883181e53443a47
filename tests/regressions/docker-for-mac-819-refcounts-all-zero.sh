#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Docker for Mac, issue 819: after a clean shutdown all refcounts are 0.
#
# "ERROR cluster 3246 refcount=0 reference=1", and so on for each cluster in use.  With
# lazy refcounts the server did not maintain refcounts at all (ocaml-qcow, pull request
# 23).  They may be wrong only while the image has the dirty bit, so that other programs
# repair them before they allocate anything.
#
# https://github.com/docker/for-mac/issues/819
# https://github.com/mirage/ocaml-qcow/pull/23
# Broken: lazy-refcounts-never-written

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
random_file "$tmp/data.raw" $((4 << 20))
for options in lazy_refcounts=on lazy_refcounts=on,cluster_size=4k,refcount_bits=64; do
  rm -f "$img"
  make_image "$img" 4M "$options"
  start_nbdkit file="$img"
  nbdcopy "$tmp/data.raw" "$uri"
  stop_nbdkit
  if is_dirty "$img"; then fail "a clean shutdown leaves the dirty bit"; fi
  check_clean "$img"
  # What another program allocates now is not in use already.
  io "$img" 'discard 0 64k' 'write -P 0x78 0 64k' 'write -P 0x79 1M 64k'
  check_clean "$img"
  "$python" - "$tmp/data.raw" "$tmp/want.raw" <<'PY'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[:65536] = b"x" * 65536
data[1 << 20:(1 << 20) + 65536] = b"y" * 65536
open(sys.argv[2], "wb").write(data)
PY
  same_as_raw "$img" "$tmp/want.raw"
done
