#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Docker for Mac, issue 1315: "Found a reference to cluster 32575 outside the file".
#
# A disk whose server gave back discarded space could not be opened any more: an entry led
# behind the end of the file.  (Issue 1318 is the same by one cluster.)
#
# https://github.com/docker/for-mac/issues/1315
# Broken: file-cut-too-early

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 64M
random_file "$tmp/data.raw" $((8 << 20))
start_nbdkit file="$img"
nbdcopy --flush "$tmp/data.raw" "$uri" || :
nbdsh_run -c 'h.pwrite(b"end" * 100000, 32 << 20); h.flush(); h.trim(4 << 20, 1 << 20)'
stop_nbdkit
check_clean "$img"
truncate -s 64M "$tmp/data.raw"
fallocate -p -o $((1 << 20)) -l $((4 << 20)) "$tmp/data.raw"
printf 'end%.0s' {1..100000} | dd of="$tmp/data.raw" bs=1M oflag=seek_bytes seek=$((32 << 20)) \
  conv=notrunc status=none
# No entry points behind the end of the file.
"$python" - "$img" <<'PY'
import os, struct, sys
with open(sys.argv[1], "rb") as f:
    size = os.fstat(f.fileno()).st_size
    h = f.read(72)
    n, l1 = struct.unpack_from(">IQ", h, 36)
    def table(at, n):
        f.seek(at)
        return [e & 0xfffffffffffe00 for e in struct.unpack(">%dQ" % n, f.read(8 * n))]
    for t in filter(None, table(l1, n)):
        assert t + 65536 <= size, "L2 table at %d" % t
        for e in filter(None, table(t, 8192)):
            assert e + 65536 <= size, "data at %d of %d" % (e, size)
PY
