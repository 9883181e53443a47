#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# go-qcow2, issue 2: a new image refers to clusters behind the end of the file.
#
# qemu-img check refused what the library had just created.
#
# https://github.com/zchee/go-qcow2/issues/2
# Broken: new-image-too-short

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

for options in cluster-size=512 cluster-size=64k cluster-size=2M \
               preallocation=metadata compat=0.10; do
  rm -f "$tmp/a.qcow2"
  start_and_end file="$tmp/a.qcow2" create=20M "$options"
  check_clean "$tmp/a.qcow2"
  # Tables do not only read as zeros because they lie behind the end.
  "$python" - "$tmp/a.qcow2" <<'PY'
import os, struct, sys
with open(sys.argv[1], "rb") as f:
    size = os.fstat(f.fileno()).st_size
    h = f.read(72)
    bits, = struct.unpack_from(">I", h, 20)
    n, l1, rt, clusters = struct.unpack_from(">IQQI", h, 36)
    assert l1 + n * 8 <= size and rt + (clusters << bits) <= size
    f.seek(rt)
    for b, in struct.iter_unpack(">Q", f.read(clusters << bits)):
        assert b + (1 << bits) <= size or b == 0
PY
done
