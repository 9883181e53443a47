#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With dir=, an open image uses memory for the parts of it that are in use, not for the
# maximum size of its tables; and when the clients have left, the memory is given back to
# the host.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

images=40
mkdir "$tmp/images"
for ((i = 0; i < images; i++)); do
  make_image "$tmp/images/$i.qcow2" 10G cluster_size=2M
done
start_nbdkit -t 2 -- dir="$tmp/images" l2-cache=8M
PYTHONPATH="$srcdir/lib" "$python" - "$sock" "$nbdkit_pid" "$images" <<'PY'
import sys, time
from memory import *

sock, pid, images = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
r = seeded()

def use(i):
    h = connect(sock, "%d.qcow2" % i)
    for _ in range(20):
        h.pwrite(b"x" * 4096, r.randrange(10 << 18) * 4096)
    h.flush()
    return h

# What the server needs once, whatever it serves.
use(0).shutdown()
before, _ = rss(pid)
handles = [use(i) for i in range(images)]
open_, most = rss(pid)
print("%.1f MiB, %.1f with %d images open" % (before, open_, images))
assert open_ < before + images * 0.6
for h in handles:
    h.shutdown()
while True:
    left, _ = rss(pid)
    if left < before + 3:
        break
    print("%.1f MiB after they have left" % left)
    time.sleep(0.2)             # shutdown does not wait for the server
PY
stop_nbdkit
