#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# log= has a line for each connection, with who it was and what it did, for what clients
# were refused, and one of a connection's failed requests: in JSON and as text, for an image
# and for a directory, whatever names are in it.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

hostile=$'q"uo\\te\n2026-01-01T00:00:00.000Z info start \e]0;\xc2\x9b31m'
mkdir "$tmp/images"
for name in a.qcow2 "$hostile"; do make_image "$tmp/images/$name" 1M; done
cp "$tmp/images/a.qcow2" "$tmp/images/bad.qcow2"
qemu-io -f qcow2 -c 'write 0 128k' "$tmp/images/bad.qcow2"
# An L2 entry that is not aligned.
header_patch "$tmp/images/bad.qcow2" $((4 << 16)) Q 0x8000000000000200

# act NAME...: clients of these images.
act ()
{
  "$python" - "$sock" "$@" <<'PY'
import sys
import nbd

def connect(name):
    h = nbd.NBD()
    h.set_export_name(name)
    h.connect_unix(sys.argv[1])
    return h

for name in sys.argv[2:]:
    h = connect(name)
    if name == "bad.qcow2":
        for i in range(5):
            try:
                h.pread(512, 0)
                sys.exit("it was read")
            except nbd.Error:
                pass
        h.shutdown()
        continue
    h.pwrite(b"x" * 4096, 0)
    h.pread(1000, 0)
    h.pread(24, 0)
    h.zero(65536, 65536)
    h.shutdown()
try:
    connect('none"\n\x1b \u202e')
    sys.exit("there is such an export")
except nbd.Error:
    pass
PY
}

for format in json text; do
  for what in dir file; do
    rm -f "$tmp/log"
    if [ "$what" = dir ]; then
      start_nbdkit dir="$tmp/images" log="$tmp/log" log-format="$format"
      act a.qcow2 "$hostile" bad.qcow2
      lines=11
      [ "$format" = json ] || lines=12  # bad.qcow2 is marked corrupt by now
    else
      start_nbdkit "$tmp/images/a.qcow2" log="$tmp/log" log-format="$format"
      act ""
      lines=5
    fi
    stop_nbdkit
    if [ "$format" = text ]; then
      # The same lines, and no byte that could make others of them.
      cat "$tmp/log"
      [ "$(wc -l < "$tmp/log")" = "$lines" ]
      if LC_ALL=C grep -n "$(printf '[\001-\011\013-\037\177]')" "$tmp/log"; then
        fail "control characters"
      fi
      continue
    fi
    PYTHONPATH="$srcdir/lib" "$python" - "$tmp" "$what" "$nbdkit_pid" "$hostile" "$lines" <<'PY'
import os
import sys
import events

tmp, what, pid, hostile, wanted = sys.argv[1:]
lines = events.read(tmp + "/log")
whole = tmp + ("/images" if what == "dir" else "/images/a.qcow2")
assert lines[0]["event"] == "start" and lines[-1]["event"] == "end"
assert lines[0]["image"] == lines[-1]["image"] == whole
assert lines[0]["pid"] == int(pid)
me = {"client": lines[1]["client"], "tls": False, "export": ""}
assert me["client"].endswith("uid %d" % os.getuid()), me
for name in ["a.qcow2"] + [hostile] * (what == "dir"):
    # As messages name it.
    image = tmp + "/images/" + "".join(
        chr(c) if 32 <= c < 127 and c != 92 else "\\x%02x" % c for c in os.fsencode(name))
    assert events.find(lines, event="connect", image=image, **me)["writable"]
    end = events.find(lines, event="disconnect", image=image, **me)
    assert (end["operations"], end["errors"]) == (4, 0), end
    assert (end["bytes_read"], end["bytes_written"]) == (1024, 4096), end
    assert end["ms"] >= 0 and end["level"] == "info"
refused = events.find(lines, event="refused", level="warning", image=whole)
assert refused["export"] == 'none"\n\x1b \u202e', refused
assert "there is no" in refused["text"]
if what == "dir":
    bad = tmp + "/images/bad.qcow2"
    failed = events.find(lines, event="request-failed", image=bad, level="error", **me)
    assert (failed["kind"], failed["offset"], failed["bytes"]) == ("read", 0, 512), failed
    assert failed["text"] == "Input/output error"
    corrupt = events.find(lines, event="corrupt", image=bad, level="error")
    assert "image is corrupt: L2" in corrupt["text"], corrupt
    end = events.find(lines, event="disconnect", image=bad, **me)
    assert (end["operations"], end["errors"]) == (0, 5), end
# Nothing else.
assert len(lines) == int(wanted), lines
PY
  done
done

# As text.
at='^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3}Z'
grep -E "$at info connect image=\"$tmp/images/a.qcow2\" export=\"\" client=\"pid [0-9]+, uid $(id -u)\" tls=false writable=true\$" "$tmp/log"
grep -E "$at info disconnect image=.* operations=4 errors=0 bytes_read=1024 bytes_written=4096\$" "$tmp/log"
grep -a -E "$at warning refused image=.* export=\"none\\\\\"\\\\n\\\\u001B \\\\u202E\" client=" "$tmp/log"

# Only what is wanted.
rm "$tmp/log"
start_nbdkit dir="$tmp/images" log="$tmp/log" log-format=json log-level=error
act a.qcow2 bad.qcow2
stop_nbdkit
PYTHONPATH="$srcdir/lib" "$python" - "$tmp/log" <<'PY'
import sys
import events

assert [line["event"] for line in events.read(sys.argv[1])] == ["corrupt", "request-failed"]
PY
