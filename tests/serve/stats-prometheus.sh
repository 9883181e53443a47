#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# stats-format=prometheus: promtool finds no fault, whatever images are called, and the
# numbers are what a client did.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires promtool --version

# Names that a label has to escape, and one that is no text.
hostile=$'q"uo\\te\nline' bytes=$'by\xffte'
mkdir "$tmp/images"
for name in plain "$hostile" "$bytes"; do make_image "$tmp/images/$name" 8M; done
file="$tmp/stats.prom"
start_nbdkit dir="$tmp/images" stats="$file" stats-format=prometheus
"$python" - "$sock" "$hostile" <<'PY'
import sys
import nbd

for name in "plain", sys.argv[2]:
    h = nbd.NBD()
    h.set_export_name(name)
    h.connect_unix(sys.argv[1])
    for i in range(3):
        h.pwrite(b"x" * 4096, i << 20)
    h.pread(512, 0)
    h.shutdown()
PY
grep -x 'nbdkit_qcow2_running{server="stats.prom"} 1' "$file"
stop_nbdkit
grep -x 'nbdkit_qcow2_running{server="stats.prom"} 0' "$file"
promtool check metrics < "$file"

"$python" - "$file" <<'PY'
import os
import re
import sys
values = dict(line.rsplit(" ", 1) for line in open(sys.argv[1]) if line[0] != "#")
for image in "plain", r'q\"uo\\te\nline':
    for key, value in {
            'operations_total{server="stats.prom",image="%s",export="",kind="write"}': 3,
            'bytes_total{server="stats.prom",image="%s",export="",kind="write"}': 3 * 4096,
            'operations_total{server="stats.prom",image="%s",export="",kind="read"}': 1,
            'errors_total{server="stats.prom",image="%s",export="",kind="read"}': 0,
            'request_seconds_count{server="stats.prom",image="%s",export="",kind="write"}': 3,
            'request_seconds_bucket{server="stats.prom",image="%s",export="",kind="write",le="+Inf"}': 3,
            'clients_total{server="stats.prom",image="%s",export=""}': 1,
            'image_state{server="stats.prom",image="%s",state="closed"}': 1}.items():
        assert float(values["nbdkit_qcow2_" + key % image]) == value, (key, image)
assert abs(float(values['nbdkit_qcow2_update_time_seconds{server="stats.prom"}']) -
           os.path.getmtime(sys.argv[1])) < 60
assert float(values['nbdkit_qcow2_connections_total{server="stats.prom"}']) == 2
# Each bucket contains those before it.
last = {}
for key, value in values.items():
    m = re.fullmatch(r'nbdkit_qcow2_request_seconds_bucket\{(.*),le="(.*)"\}', key)
    if m:
        assert int(value) >= last.get(m[1], 0), key
        last[m[1]] = int(value)
PY

# Over the other format, and back; nothing else is replaced.
start_nbdkit file="$tmp/images/plain" stats="$file"
stop_nbdkit
"$python" -m json.tool "$file" > /dev/null
start_nbdkit file="$tmp/images/plain" stats="$file" stats-format=prometheus
promtool check metrics < "$file"
stop_nbdkit
echo '# HELP something_else' > "$tmp/other.prom"
refused 'is not a report' file="$tmp/images/plain" stats="$tmp/other.prom" \
  stats-format=prometheus

# An image with a name that is no text.
start_nbdkit dir="$tmp/images" stats="$file" stats-format=prometheus
"$python" - "$sock" <<'PY'
import socket
import struct
import sys

# (libnbd takes no such name.)
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
assert s.recv(18, socket.MSG_WAITALL)[:8] == b"NBDMAGIC"
name = b"by\xffte"
s.sendall(struct.pack(">I8sII", 1, b"IHAVEOPT", 7, len(name) + 6) +
          struct.pack(">I", len(name)) + name + b"\0\0")
s.recv(20)
PY
stop_nbdkit
promtool check metrics < "$file"
grep -q '_clients_total{server="stats.prom",image="by.*te",export=""} 1$' "$file"
