#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The control socket is for its owner alone, takes no other file's place and leaves
# nothing behind.  One that a killed server left is replaced.  On its clients' request,
# the server ends as with SIGTERM, and tells them.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2" qmp="$sockdir/qmp"
make_image "$img" 8M

echo text > "$tmp/text"
mkdir "$tmp/dir"
ln -s nowhere "$tmp/link"
for i in text dir link; do
  refused "/$i: cannot make the control socket: something else is there" \
    control="$tmp/$i" "$img"
done
[ "$(cat "$tmp/text")" = text ]
[ -L "$tmp/link" ]
refused "the path is too long" control="$tmp/$(printf 'x%.0s' {1..108})" "$img"
refused "cannot make the control socket: No such file" control="$tmp/none/qmp" "$img"
[ ! -e "$qmp" ]

umask 0
start_nbdkit control="$qmp" "$img"
[ "$(stat -c %a "$qmp")" = 600 ]
refused "cannot make the control socket: another server uses it" control="$qmp" "$img"
# Also if that is stopped, and no more clients fit into its queue.
kill -STOP "$nbdkit_pid"
"$python" - "$qmp" <<'PY' > "$tmp/queue" &
import signal
import socket
import sys
clients = []
try:
    while True:
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        clients.append(s)
        s.connect(sys.argv[1])
except BlockingIOError:
    print("full", flush=True)
signal.pause()
PY
helper_pids+=($!)
await -p $! grep -q full "$tmp/queue"
refused "cannot make the control socket: another server uses it" control="$qmp" "$img"
kill -CONT "$nbdkit_pid"
kill9_nbdkit
[ -S "$qmp" ]
start_nbdkit control="$qmp" "$img"

ask ()
{
  PYTHONPATH="$srcdir/lib" "$python" - "$qmp" "$uri"
}

ask <<'PY'
import sys
import nbd
from qmp import Client

h = nbd.NBD()
h.connect_uri(sys.argv[2])
h.pwrite(b"data" * 128, 4096)
c, other, third = Client(sys.argv[1]), Client(sys.argv[1]), Client(sys.argv[1], False)
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(b"more" * 16384), i << 16)
           for i in range(1, 40)]
assert c.get("quit") == {}
# What was sent is answered.  (nbdkit refuses what it had not begun.)
for cookie in cookies:
    try:
        while not h.aio_command_completed(cookie):
            h.poll(-1)
    except nbd.Error:
        pass
del h
for k in c, other:
    assert k.answer() is None
    assert [e["event"] for e in k.events] == ["SHUTDOWN", "BLOCK_EXPORT_DELETED"]
    assert k.events[0]["data"] == {"guest": False, "reason": "host-qmp-quit"}
    assert k.events[1]["data"] == {"id": "disk"}
    assert set(k.events[0]["timestamp"]) == {"seconds", "microseconds"}
# It has not negotiated, so it hears no events.
assert third.answer() is None and third.events == []
PY
wait "$nbdkit_pid"
unset "server_pid[main]"
[ ! -e "$qmp" ]
qemu-img check "$img"
qemu-io -f qcow2 -r -c 'read -v 4096 16' "$img" | grep -q datadata

start_nbdkit control="$qmp" "$img"
"$python" - "$srcdir/lib" "$qmp" "$nbdkit_pid" <<'PY'
import os
import signal
import sys
sys.path.insert(0, sys.argv[1])
from qmp import Client

c = Client(sys.argv[2])
os.kill(int(sys.argv[3]), signal.SIGTERM)
assert c.answer() is None
assert c.events[0]["data"]["reason"] == "host-signal", c.events
PY
wait "$nbdkit_pid"
unset "server_pid[main]"
[ ! -e "$qmp" ]
