#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# However often clients come, and whatever they ask for, they add only so many lines a minute
# to log=, none of which is long; how many were left out is in one more line.  Warnings that
# they cause push out no error.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/a.qcow2" 1M
mkdir "$tmp/images"
for name in bad marked; do
  make_image "$tmp/images/$name" 1M
  qemu-io -f qcow2 -c 'write 0 128k' "$tmp/images/$name"
done
# An L2 entry that is not aligned; an image that can only be read.
header_patch "$tmp/images/bad" $((4 << 16)) Q 0x8000000000000200
header_patch "$tmp/images/marked" 72 Q 2
start_nbdkit dir="$tmp/images" log="$tmp/log" log-format=json
"$python" - "$sock" <<'PY'
import sys
import nbd

def connect(name):
    h = nbd.NBD()
    h.set_export_name(name)
    h.connect_unix(sys.argv[1])
    return h

for i in range(1500):
    connect("marked").shutdown()
try:
    connect("bad").pread(512, 0)
    sys.exit("it was read")
except nbd.Error:
    pass
PY
stop_nbdkit
PYTHONPATH="$srcdir/lib" "$python" - "$tmp/log" <<'PY'
import sys
import json
import events

lines = [json.loads(line) for line in open(sys.argv[1])]
events.find(lines, event="corrupt", level="error")
events.find(lines, event="request-failed", level="error")
assert lines[-1]["event"] == "end"
omitted = [line for line in lines if line["event"] == "omitted" and line["about"] == "images"]
# (Some found the image open.)
told = len([line for line in lines if line["event"] == "read-only"])
assert told >= 600 and told + sum(line["lines"] for line in omitted) <= 1500, told
assert omitted and {line["of"] for line in omitted} == {"warning"}, omitted
PY
rm "$tmp/log"

start_nbdkit "$tmp/a.qcow2" log="$tmp/log" log-format=json
"$python" - "$sock" <<'PY'
import sys
import nbd

for i in range(700):
    h = nbd.NBD()
    h.set_opt_mode(True)
    h.connect_unix(sys.argv[1])
    for k in range(2):
        h.set_export_name("\x01" * 4000)
        try:
            h.opt_go()
            sys.exit("it is there")
        except nbd.Error:
            pass
    h.opt_abort()
PY
stop_nbdkit
PYTHONPATH="$srcdir/lib" "$python" - "$tmp/log" <<'PY'
import sys
import json

lines = [json.loads(line) for line in open(sys.argv[1])]
assert max(map(len, open(sys.argv[1]))) < 20000
count = lambda event: len([line for line in lines if line["event"] == event])
omitted = [line for line in lines if line["event"] == "omitted"]
# (The clients may need more than a minute.)
minutes = len(omitted)
assert minutes > 0 and count("refused") <= 600 * (minutes + 1), minutes
assert count("refused") + sum(line["lines"] for line in omitted) >= 1400
assert all((line["about"], line["level"]) == ("connections", "warning") for line in omitted)
assert count("start") == count("end") == 1
PY
