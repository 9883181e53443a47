#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Random writes all over a large disk, and many large trims at a time, use about as much
# memory as l2-cache: it includes changed mappings and copies of them that are being
# written; freed clusters and refcounts are included or small.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

start ()                        # NAME L2-CACHE
{
  start_nbdkit_as "$1" -- file="$tmp/$1.qcow2" l2-cache="$2"
}

make_image "$tmp/writes.qcow2" 256G
make_image "$tmp/trims.qcow2" 8G cluster_size=4096,preallocation=metadata

start writes 4M
PYTHONPATH="$srcdir/lib" "$python" - "$sock" "$nbdkit_pid" <<'PY'
import sys
from memory import *

sock, pid = sys.argv[1], int(sys.argv[2])
handles = [connect(sock) for _ in range(4)]
r = seeded()
before, _ = rss(pid)
pump(handles, writes((r.randrange(1 << 26) * 4096 for _ in range(6000)), 4096))
_, most = rss(pid)
print("writes, l2-cache=4M: %.1f MiB more" % (most - before))
assert most - before < 9
for h in handles:
    h.shutdown()
PY
stop_nbdkit writes
check_clean "$tmp/writes.qcow2"

start trims 1M
PYTHONPATH="$srcdir/lib" "$python" - "$sock" "$nbdkit_pid" <<'PY'
import sys
from memory import *

sock, pid = sys.argv[1], int(sys.argv[2])
handles = [connect(sock) for _ in range(4)]
before, _ = rss(pid)
each = 1 << 29
pump(handles, trims(range(0, 16 * each, each), each), 4)
_, most = rss(pid)
print("trims, l2-cache=1M: %.1f MiB more" % (most - before))
assert most - before < 16
for h in handles:
    h.shutdown()
PY
stop_nbdkit trims
check_clean "$tmp/trims.qcow2"
