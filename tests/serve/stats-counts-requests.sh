#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# stats= counts what a client did, for each export and each kind of request, with the times
# that it took; query-blockstats shows the same numbers.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/a.qcow2" 8M
qemu-img snapshot -c s "$tmp/a.qcow2"
start_nbdkit control="$sockdir/qmp" stats="$tmp/stats.json" file="$tmp/a.qcow2"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" "$tmp/stats.json" <<'PY'
import json
import sys
import nbd
from qmp import Client, connect

path, sock, file = sys.argv[1:]
control = Client(path)

def image():
    device, = control.get("query-blockstats")
    return device["x-statistics"]

def exports():
    return {e["export"]: e for e in image()["exports"]}

h, g, snapshot = connect(sock), connect(sock), connect(sock, "s")
h.pwrite(b"x" * 65536, 0)
h.pwrite(b"x" * 1000, 1 << 20)
g.pread(512, 0)
for i in range(3):
    h.pread(4096, i << 20)
h.zero(8192, 2 << 20)
h.trim(65536, 0)
h.flush()
h.cache(4096, 0)
for i in range(2):
    h.block_status(1 << 20, 0, lambda *_: 0)
snapshot.pread(100, 0)
failed = 0
try:
    h.set_strict_mode(0)
    snapshot.set_strict_mode(0)
    h.zero(65536, 4 << 20, nbd.CMD_FLAG_FAST_ZERO)
except nbd.Error:
    failed = 1

wanted = {"read": (4, 3 * 4096 + 512), "write": (2, 66536), "trim": (1, 65536),
          "zero": (2 - failed, 8192 + (1 - failed) * 65536), "flush": (1, None),
          "cache": (1, 4096), "extents": (2, None)}
for key, (operations, size) in wanted.items():
    kind = exports()[""][key]
    assert kind["operations"] == operations, (key, kind)
    assert kind.get("bytes") == size, (key, kind)
    assert kind["errors"] == kind["running"] == 0 and kind["ns"] > 0, (key, kind)
    assert sum(kind["times"]) == operations, (key, kind)
assert exports()["s"]["read"]["operations"] == 1
assert exports()["s"]["write"]["operations"] == 0
assert exports()[""]["clients"] == exports()[""]["ever"] == 2
assert image()["state"] == "ok" and image()["reason"] is None
assert image()["flush"]["checkpoints"] >= 1 and image()["flush"]["checkpoint_ns"] > 0

# The same in the file, when that is up to date.
while True:
    with open(file) as f:
        document = json.load(f)
    one, = document["images"]
    if one == image():
        break
assert len(one["exports"][0]["read"]["times"]) == len(document["bounds_ns"]) + 1
h.shutdown()
g.shutdown()
while exports()[""]["clients"]:
    pass
assert exports()[""]["ever"] == 2
assert exports()[""]["write"]["operations"] == 2
PY

# Nor is anything forgotten at the end.
stop_nbdkit
[ "$("$python" -c 'import json, sys
image, = json.load(open(sys.argv[1]))["images"]
active, = [e for e in image["exports"] if e["export"] == ""]
print(active["write"]["bytes"])' "$tmp/stats.json")" = 66536 ]
