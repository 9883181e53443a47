#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# query-blockstats counts what clients do with the active disk: each byte, operation and
# failure, over several connections, also those that have ended.  x-query-statistics shows
# what stats= writes, and in it the same of each image.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

mkdir "$tmp/images"
for i in a b; do make_image "$tmp/images/$i" 8M; done
qemu-img snapshot -c s "$tmp/images/a"

# count DEVICE EXPORT-PREFIX
count ()
{
  PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" "$@" <<'PY'
import sys
import nbd
from qmp import Client

path, sock, device, whole, prefix = sys.argv[1:]
c = Client(path)

def connect(export):
    h = nbd.NBD()
    h.set_export_name(export)
    h.connect_unix(sock)
    return h

def stats(parent=False):
    one = [s for s in c.get("query-blockstats") if s["device"] == device][0]
    assert one["node-name"].endswith("node0")
    return one["parent"]["stats"] if parent else one["stats"]

if prefix == "again":
    g = connect(whole)
    assert stats()["rd_operations"] == 5 and stats()["wr_operations"] == 3
    sys.exit()
g, h = connect(whole), connect(whole)
assert stats()["rd_operations"] == stats()["wr_operations"] == 0
assert stats()["wr_highest_offset"] == 0
g.pwrite(b"x" * 65536, 1 << 20)
h.pwrite(b"y" * 1000, 3 << 20)
h.zero(4096, 0)
for i in range(5):
    g.pread(100, i)
h.trim(65536, 0)
h.flush()
s = stats()
assert (s["wr_bytes"], s["wr_operations"]) == (65536 + 1000 + 4096, 3), s
assert (s["rd_bytes"], s["rd_operations"]) == (500, 5), s
assert (s["unmap_bytes"], s["unmap_operations"]) == (65536, 1), s
assert s["flush_operations"] == 1, s
assert s["wr_highest_offset"] == (3 << 20) + 1000
assert s["failed_rd_operations"] == s["failed_wr_operations"] == 0
assert all(s[k + "_total_time_ns"] > 0 for k in ("rd", "wr", "flush", "unmap"))
assert stats(True)["wr_highest_offset"] >= 65536
# What has ended counts too; other exports do not.
h.shutdown()
if prefix:
    connect(prefix + "s").pread(512, 0)
assert stats()["wr_bytes"] == s["wr_bytes"]
nodes = c.get("query-blockstats", query_nodes=True)
assert all("device" not in n for n in nodes)
PY
}

start_nbdkit control="$sockdir/qmp" "$tmp/images/b"
count disk "" ""
stop_nbdkit
start_nbdkit control="$sockdir/qmp" dir="$tmp/images"
count a a a/
# That nobody used it in between is no reason to count anew.
count a a again
stop_nbdkit

# (The file has the state at the end of the last client; it is read when nobody is there.)
start_nbdkit control="$sockdir/qmp" stats="$tmp/stats" "$tmp/images/a"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" "$tmp/stats" <<'PY'
import json
import sys
import nbd
from qmp import Client

c = Client(sys.argv[1])
h = nbd.NBD()
h.connect_unix(sys.argv[2])
h.pwrite(b"x" * 65536, 1 << 20)
h.pread(512, 0)
h.shutdown()
while True:
    with open(sys.argv[3]) as f:
        written = json.load(f)
    asked = c.get("x-query-statistics")
    del written["updated"], written["running"]
    if asked == written and asked["connections"] == {"open": 0, "ever": 1}:
        break
assert asked["map"]["misses"] > 0 and asked["images"][0]["exports"][0]["ever"] == 1, asked
assert [s["x-statistics"] for s in c.get("query-blockstats")] == asked["images"]
PY
stop_nbdkit
