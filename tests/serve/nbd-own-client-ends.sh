#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A server of a directory in which backing files and data files of images are exports of
# the same server.  Told to end, it ends when the clients of others have left, or soon if
# they wait for such an image; and what was flushed is there.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

here="nbd+unix:///?socket=$sockdir/main.sock"

# named NAME: the URI of an image of this server.
named ()
{
  echo "nbd+unix:///$1?socket=$sockdir/main.sock"
}

mkdir "$tmp/images"
qemu-img create -q -f qcow2 "$tmp/images/base" 8M
qemu-io -f qcow2 -c 'write -P 7 0 8M' "$tmp/images/base" >/dev/null
for overlay in middle:base top:middle a:b b:a; do
  qemu-img create -q -f qcow2 -u -F raw -b "$(named "${overlay#*:}")" \
    "$tmp/images/${overlay%:*}" 8M
done
qemu-img create -q -f qcow2 "$tmp/images/data" 8M
qemu-img create -q -f qcow2 -o data_file="$tmp/unused" "$tmp/images/split" 8M
"$python" - "$tmp/images/split" "$(named data)" <<'PY'
import struct, sys
name = sys.argv[2].encode()
with open(sys.argv[1], "r+b") as f:
    f.seek(100)
    start = struct.unpack(">I", f.read(4))[0]
    f.seek(start)
    f.write(struct.pack(">II", 0x44415441, len(name)) + name + bytes(-len(name) % 8) +
            bytes(8))
PY

# start [PARAMETER...]
start ()
{
  start_nbdkit dir="$tmp/images" allow-uri="$here" lock=false \
    connect-timeout="${patience-30}" "$@"
}

# told_to_end EXPORT SCRIPT: while a client of this export runs the script, which has `end'.
told_to_end ()
{
  "$python" -c '
import nbd, os, signal, sys
def end():
    os.kill(int(sys.argv[2]), signal.SIGTERM)
h = nbd.NBD()
h.connect_uri(sys.argv[1])
exec(sys.argv[3])' "$(named "$1")" "$nbdkit_pid" "$2"
}

# A client that is idle, and leaves.
start
told_to_end top '
assert h.pread(4096, 65536) == b"\7" * 4096
h.pwrite(b"a" * 4096, 65536)
h.flush()
h.pwrite(b"b" * 4096, 1 << 20)
end()
import time
time.sleep(0.3)'
await_nbdkit
start
told_to_end top '
assert h.pread(4096, 65536) == b"a" * 4096
assert h.pread(4096, 1 << 20) == b"b" * 4096
end()'
await_nbdkit
qemu-img rebase -q -u -b "" "$tmp/images/top"
check_clean "$tmp/images/top"

# One with requests in flight, which need the server: it does not wait for itself for as
# long as reconnect= says.
start reconnect=3600
told_to_end top '
for i in range(64):
    h.aio_pread(nbd.Buffer(1 << 20), (i & 7) << 20)
try:
    while h.aio_in_flight() > 40:
        h.poll(-1)
    end()
    while h.aio_in_flight() > 0:
        h.poll(-1)
except nbd.Error:
    pass'
await_nbdkit

# Data that is written through the server itself.
start reconnect=1
told_to_end split '
h.pwrite(b"c" * 65536, 0)
h.flush()
h.pwrite(b"d" * 65536, 1 << 20)
end()'
await_nbdkit
start
told_to_end split '
assert h.pread(65536, 0) == b"c" * 65536
assert h.pread(65536, 1 << 20) in (bytes(65536), b"d" * 65536)
end()'
await_nbdkit
check_clean "$tmp/images/data"

# One that waits for a chain without an end.
patience=3 start
"$python" -c '
import nbd, sys
while True:
    try:
        nbd.NBD().connect_uri(sys.argv[1])
    except nbd.Error:
        pass' "$(named a)" &
helper_pids+=($!)
has_sockets ()
{
  [ "$(find "/proc/$nbdkit_pid/fd" -lname 'socket:*' | wc -l)" -ge 5 ]
}
await has_sockets
kill -TERM "$nbdkit_pid"
await_nbdkit
