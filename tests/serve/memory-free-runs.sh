#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Any number of free clusters that are not adjacent uses a limited amount of memory, and
# all of them are reused before the file grows.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

clusters=409600
image="$tmp/disk.qcow2"
make_image "$image" $((clusters * 512)) cluster_size=512
start_nbdkit -- file="$image" l2-cache=1M
PYTHONPATH="$srcdir/lib" "$python" - "$sock" "$nbdkit_pid" "$image" "$clusters" <<'PY'
import os, sys
from memory import *

sock, pid, image, clusters = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
h = connect(sock)
size = 512 * clusters
pump([h], writes(range(0, size, 65536), 65536))
h.flush()
before, _ = rss(pid)
length = os.stat(image).st_size

# Every other cluster: 204,800 runs.
pump([h], trims(range(0, size, 1024), 512))
h.flush()
trimmed, _ = rss(pid)
print("%.1f MiB, %.1f with isolated free clusters" % (before, trimmed))
assert trimmed < before + 8

pump([h], writes(range(0, size, 1024), 512))
h.flush()
print("%d bytes, %d when they are used again" % (length, os.stat(image).st_size))
assert os.stat(image).st_size < length * 1.03
h.shutdown()
PY
stop_nbdkit
check_clean "$image"
