#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Of many images in a directory, statistics describe 128, those that are bad first, then
# those that are open, and count each of the others once.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

mkdir "$tmp/images"
make_image "$tmp/images/000" 1M
qemu-img snapshot -c s "$tmp/images/000"
for i in $(seq -f %03g 1 130); do cp "$tmp/images/000" "$tmp/images/$i"; done
make_image "$tmp/images/bad" 1M
qemu-io -f qcow2 -c 'write 0 128k' "$tmp/images/bad"
# An L2 entry that is not aligned.
header_patch "$tmp/images/bad" $((4 << 16)) Q 0x8000000000000200
start_nbdkit dir="$tmp/images" stats="$tmp/stats"
"$python" - "$sock" "$tmp/stats" <<'PY'
import json
import sys
import nbd

def connect(name):
    h = nbd.NBD()
    h.set_export_name(name)
    h.connect_unix(sys.argv[1])
    return h

# Kept open; then used, each with two exports, of which the last 125 images' are remembered.
held = [connect("%03d" % i) for i in range(6)]
for i in range(6, 131):
    for export in "", "/s":
        connect("%03d" % i + export).shutdown()
stats = {"connections": {"open": 0}}
while stats["connections"] != {"open": 6, "ever": 256}:
    stats = json.load(open(sys.argv[2]))
images = stats["images"]
assert len(images) == 128, len(images)
assert len({i["image"] for i in images}) == 128
assert {i["image"] for i in images[:6]} == {"%03d" % i for i in range(6)}
assert all(i["state"] == "ok" for i in images[:6]), images[:6]
assert all(i["state"] == "closed" and len(i["exports"]) == 2 for i in images[6:])
assert stats["images_omitted"] == 3, stats["images_omitted"]
# All open; and then one more, which is corrupt.
held = [connect("%03d" % i) for i in range(131)]
bad = connect("bad")
try:
    bad.pread(512, 0)
    sys.exit("it was read")
except nbd.Error:
    pass
first = None
while first != ("bad", "corrupt") or len(stats["images"]) < 128:
    stats = json.load(open(sys.argv[2]))
    first = stats["images"][0]["image"], stats["images"][0]["state"]
bad.shutdown()
while first != ("bad", "corrupt") or stats["connections"]["open"] > 131:
    stats = json.load(open(sys.argv[2]))
    first = stats["images"][0]["image"], stats["images"][0]["state"]
assert stats["images_omitted"] == 4, stats["images_omitted"]
PY
stop_nbdkit
