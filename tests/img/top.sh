#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# top shows what clients do meanwhile, the busiest image first, and no more than a terminal
# has room for.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
IMG="$abs_top_builddir/img/nbdkit-qcow2-img"

mkdir "$tmp/images"
long="c$(printf '\303\244\344\270\255%.0s' {1..40})"
for i in idle busy "$long" d e f; do make_image "$tmp/images/$i" 8M; done
start_nbdkit control="$sockdir/qmp" dir="$tmp/images"
"$python" - "$sock" "$IMG" "$sockdir/qmp" "$long" <<'PY'
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import unicodedata
import nbd

sock, img, control, long = sys.argv[1:]

def connect(export):
    h = nbd.NBD()
    h.set_export_name(export)
    h.connect_unix(sock)
    return h

handles = {name: connect(name) for name in ("idle", "busy", long, "d", "e", "f")}
second = connect("busy")
ended = False
def work():
    while not ended:
        handles["busy"].pwrite(b"x" * 4096, 0)
worker = threading.Thread(target=work)
worker.start()

def top(*options):
    return subprocess.run([img, "--control", control, "top", *options], text=True,
                          stdout=subprocess.PIPE, check=True).stdout

try:
    images = []
    while not any(i["operations-per-second"] for i in images):
        images = json.loads(top("--output=json", "-d", "50"))["images"]
    first = images[0]
    assert first["image"] == "busy" and first["clients"] == 2, first
    assert first["state"] == "ok" and first["errors"] == 0, first
    ratio = first["write-bytes-per-second"] / first["operations-per-second"]
    assert abs(ratio - 4096) < 41, first
    assert first["read-bytes-per-second"] == 0 and first["latency-seconds"] > 0, first
    assert len(json.loads(top("--output=json", "-d", "1"))["images"]) == 6

    # One table; two, if they are asked for.
    table = top("-d", "50").splitlines()
    assert len(table) == 7 and table[1].split()[-1] == "busy", table
    assert len(top("-d", "1", "-n", "2").splitlines()) == 14

    # A terminal of seven lines, and one of 80 columns: nothing goes beyond its edges.
    def screen(rows, columns):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        subprocess.run([img, "--control", control, "top", "-d", "50", "-n", "1"],
                       stdout=slave, check=True)
        os.close(slave)
        shown = b""
        try:
            while data := os.read(master, 65536):
                shown += data
        except OSError:         # the end
            pass
        lines = shown.decode().splitlines()
        assert lines[0].startswith("\033[H\033[J"), lines
        lines[0] = lines[0][6:]
        for line in lines:
            assert sum(1 + (unicodedata.east_asian_width(c) == "W")
                       for c in line) <= columns, line
        return lines
    lines = screen(7, 120)
    assert len(lines) == 5 and lines[1].split()[-1] == "busy", lines
    assert lines[-1] == "(3 images more)", lines
    lines = screen(20, 80)
    assert len(lines) == 7 and lines[1].split()[-1] == "busy", lines
    assert [line for line in lines if long[:8] in line], lines
    lines = screen(20, 20)
    assert len(lines) == 7 and all(line.startswith("ok ") for line in lines[1:]), lines
    lines = screen(20, 30)
    assert lines[1].split()[0] == "ok" and lines[1].split()[2:] == ["busy"], lines
finally:
    ended = True
    worker.join()
PY
if "$IMG" top 2> "$tmp/said"; then fail "top without a server"; fi
grep -q 'top requires --control SOCKET' "$tmp/said"

# QEMU's own server has no such counters, and top says so.
if [ -n "$(command -v qemu-storage-daemon)" ]; then
  start_storage_daemon --blockdev driver=null-co,node-name=n
  fails_with 'this server does not count requests' "$IMG" --control "$sockdir/t.qmp" top
  end_storage_daemon
fi
# Ours does, although no image of a directory is in use.
mkdir "$tmp/none"
start_nbdkit_as none control="$sockdir/none.qmp" dir="$tmp/none"
"$IMG" --control "$sockdir/none.qmp" top -d 1
# It says so when the server has ended.
"$IMG" --control "$sockdir/none.qmp" top -d 1 -n 1000000 > "$tmp/shown" 2> "$tmp/said" &
top=$!
await test -s "$tmp/shown"
stop_nbdkit none
if wait "$top"; then fail "top without a server"; fi
grep -q 'what is shown is how it was before' "$tmp/said"

# A server may be anybody's: what it says does not control the terminal.
"$python" - "$sockdir/fake.qmp" <<'PY' &
import json, socket, sys

s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
c = s.accept()[0].makefile("rw")
odd = "\x1b]0;x\x07\u202e\udcff"
answers = {
    "qmp_capabilities": {},
    "query-blockstats": [{"x-statistics": {"image": odd, "state": odd, "reason": odd,
                                           "exports": []}}],
    "query-jobs": [{"id": odd, "type": odd, "status": odd}],
}
def say(what):
    c.write(json.dumps(what) + "\n")
    c.flush()
say({"QMP": {"version": {}, "capabilities": []}})
for line in c:
    say({"return": answers.get(json.loads(line)["execute"], [])})
PY
helper_pids+=($!)
await listens "$sockdir/fake.qmp"
"$IMG" --control "$sockdir/fake.qmp" top -d 1 > "$tmp/said"
cat -v "$tmp/said"
[ "$(grep -c ']0;x' "$tmp/said")" = 2 ]
grep -q '\\xe2\\x80\\xae\\xff' "$tmp/said"
if LC_ALL=C grep -q '[^ -~]' "$tmp/said"; then fail "an escape sequence"; fi
