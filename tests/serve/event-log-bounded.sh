#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# However often clients come, and whatever they ask for, they add only so many lines a minute
# to log=, none of which is long; how many were left out is in one more line.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/a.qcow2" 1M
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
