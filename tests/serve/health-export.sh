#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The export .health opens as long as the server lives: also while another program has
# locked an image, or one is damaged.  It is empty and read-only, locks and writes nothing, is not
# listed, and hides no snapshot: one with this name is listed by its ID.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdinfo --version

# healthy: as a probe does it.
healthy ()
{
  [ "$(nbdinfo --size "$(export_uri .health)")" = 0 ]
}

img="$tmp/images/a.qcow2"
mkdir "$tmp/images"
make_image "$img" 1M
qemu-img bitmap --add "$img" b
cp "$img" "$tmp/before"

start_nbdkit stats="$tmp/stats" file="$img"
healthy
nbdinfo "$(export_uri .health)" | tee "$tmp/info"
grep 'is_read_only: true' "$tmp/info"
grep 'can_flush: false' "$tmp/info"
# Requests are refused, and the server goes on.
"$python" - "$(export_uri .health)" <<'PY'
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.set_strict_mode(0)
for request in (lambda: h.pread(1, 0), lambda: h.pwrite(b"x", 0), h.flush,
                lambda: h.trim(1, 0), lambda: h.zero(1, 0), lambda: h.cache(1, 0)):
    try:
        request()
    except nbd.Error:
        continue
    raise Exception("not refused")
h.shutdown()
PY
healthy
stop_nbdkit
cmp "$img" "$tmp/before"
# It is no client of the disk.
"$python" - "$tmp/stats" <<'PY'
import json, sys
stats = json.load(open(sys.argv[1]))
assert stats["images"][0]["exports"] == [] and stats["connections"]["ever"] >= 4, stats
PY

# Another program has the disk, and another image is none.
echo damaged > "$tmp/images/b.qcow2"
start_nbdkit dir="$tmp/images"
hold_in_qemu_io -f qcow2 "$img"
uri="$(export_uri a.qcow2)"
refused_connection '"write" lock: is another process'
uri="$(export_uri b.qcow2)"
refused_connection 'b.qcow2: .*not a qcow2 image'
healthy
end_qemu_io
stop_nbdkit

# A snapshot with this name.
qemu-img snapshot -c .health "$img"
start_nbdkit file="$img"
healthy
nbdinfo --list --json "$uri" > "$tmp/list"
"$python" - "$tmp/list" <<'PY'
import json, sys
names = [e["export-name"] for e in json.load(open(sys.argv[1]))["exports"]]
assert "1" in names and ".health" not in names, names
PY
[ "$(nbdinfo --size "$(export_uri 1)")" = 1048576 ]
stop_nbdkit
