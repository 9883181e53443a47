#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With dir=, l2-cache is the limit of all images together, including changed mappings that
# wait for a checkpoint.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

mkdir "$tmp/images"
for i in 1 2 3 4; do
  make_image "$tmp/images/$i.qcow2" 32M cluster_size=512
done
start_nbdkit -v -D qcow2.stats=1 -- dir="$tmp/images" l2-cache=256K l2-slice=512
"$python" - "$sock" <<'PY'
import nbd, os, random, sys
seed = int(os.environ.get("SEED") or os.environ.get("QCOW2_TEST_SEED")
           or random.SystemRandom().getrandbits(32))
print("SEED=%d" % seed)
r = random.Random(seed)
handles = []
for i in (1, 2, 3, 4):
    h = nbd.NBD()
    h.set_export_name("%d.qcow2" % i)
    h.connect_unix(sys.argv[1])
    handles.append(h)
written = {}
for n in range(6000):
    # Each image for a while, so that others rest with changes of theirs.
    i = n // 500 % 4
    at = r.randrange(65536) * 512
    data = r.randbytes(512)
    handles[i].pwrite(data, at)
    written[i, at] = data
for (i, at), data in written.items():
    assert handles[i].pread(512, at) == data
for h in handles:
    h.shutdown()
PY
stop_nbdkit
for i in 1 2 3 4; do check_clean "$tmp/images/$i.qcow2"; done
most=$(sed -n 's/.* \([0-9]*\) at most.*/\1/p' "$tmp/main.log")
[ "$most" -gt 200000 ]
[ "$most" -lt 320000 ]
