#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# blockdev-add refuses an export of the server itself, which would wait for itself while a
# disk changes: at its Unix socket, also by another name, and at its TCP port, by any
# address of this host.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version

make_image "$tmp/a.qcow2" 8M
truncate -s 8M "$tmp/other.raw"
qemu-nbd -f raw -t -k "$sockdir/other.sock" "$tmp/other.raw" &
helper_pids+=("$!")
await -p "$!" listens "$sockdir/other.sock"
start_nbdkit control="$sockdir/qmp" "$tmp/a.qcow2"
ln -s main.sock "$sockdir/link.sock"

cat > "$tmp/own.py" <<'PY'
import sys
from qmp import Client

def add(**server):
    return dict(driver="nbd", node_name="t", server=server)
OWN = "is the address of this server"
PY
PYTHONPATH="$srcdir/lib:$tmp" "$python" - "$sockdir" <<'PY'
from own import *
c = Client(sys.argv[1] + "/qmp")
for name in "main", "link":
    c.refuses(OWN, "blockdev-add", **add(type="unix", path="%s/%s.sock" % (sys.argv[1], name)))
c.get("blockdev-add", **add(type="unix", path=sys.argv[1] + "/other.sock"))
PY
stop_nbdkit

# (The kernel chooses the port.)
PYTHONPATH="$srcdir/lib:$tmp" "$python" - "$sockdir/tcp.qmp" "$NBDKIT" "$PLUGIN" \
  control="$sockdir/tcp.qmp" "$tmp/a.qcow2" <<'PY'
import os
import socket
import subprocess
from own import *

listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen()
port = listening.getsockname()[1]
os.dup2(listening.fileno(), 3, inheritable=True)
server = subprocess.Popen(["sh", "-c", 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"', "sh",
                           sys.argv[2], "-f", *sys.argv[3:]], pass_fds=[3])
while True:
    try:
        c = Client(sys.argv[1])
        break
    except OSError:
        assert server.poll() is None
for host in "127.0.0.1", "localhost":
    c.refuses(OWN, "blockdev-add", **add(type="inet", host=host, port=str(port)))
closed = socket.socket()
closed.bind(("127.0.0.1", 0))
c.refuses("connect", "blockdev-add",
          **add(type="inet", host="127.0.0.1", port=str(closed.getsockname()[1])))
server.terminate()
assert server.wait() == 0
PY
