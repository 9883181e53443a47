#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit 1.42 and newer send the text of errors to clients that negotiate, and not only the
# text of that error: what clients learn names no file or server of the host, and not what
# was found there.  The log does.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# newer TOOL VERSION: is its version this one, or newer?
newer ()
{
  printf '%s\n' "$2" "$("$1" --version | grep -oE '[0-9]+\.[0-9]+' | head -n 1)" |
    sort -C -V
}

sends_text=
if newer "$NBDKIT" 1.42; then sends_text=yes; fi
echo "does this nbdkit send the text? ${sends_text:-no}"

# hidden: what the client has learnt must not be more than it should.
hidden ()
{
  cat "$tmp/told"
  # (An error of libnbd's own may name the socket.)
  sed -i "s,$sock,,g" "$tmp/told"
  if grep -aE 'hidden|a\.qcow2|[sS]ocket=|L2|corrupt' "$tmp/told"; then
    fail "the client learns too much"
  fi
}

# fails URI COMMAND: the command, or opening the export, fails.
fails ()
{
  "$python" - "$1" "$2" > "$tmp/told" <<'PY'
import nbd, sys
h = nbd.NBD()
h.add_meta_context("base:allocation")
h.set_strict_mode(0)
try:
    h.connect_uri(sys.argv[1])
    exec(sys.argv[2])
except nbd.Error as e:
    print(e.string)
    sys.exit(0)
sys.exit("no error")
PY
  hidden
}

# negotiate: lists exports, asks for one that is served, one that is not and those named,
# and each time does something wrong.  Where nbdkit sends the text, it sends it again.
cat > "$tmp/negotiate.py" <<'PY'
import socket, struct, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
def receive(n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        assert more
        data += more
    return data
def option(number, data):
    s.sendall(b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data)
    reply = 3
    while 1 < reply < 1 << 31:
        reply, length = struct.unpack(">12xII", receive(20))
        text = receive(length)
    if reply >= 1 << 31:
        print(text)
LIST, INFO = 3, 6
receive(18)
s.sendall(struct.pack(">I", 3))
option(INFO, b"bad")
for name in "", "other", *sys.argv[2:]:
    option(INFO, struct.pack(">I", len(name)) + name.encode() + struct.pack(">H", 0))
    option(INFO, b"bad")
    option(LIST, b"")
    option(99, b"")
PY
negotiate ()
{
  "$python" "$tmp/negotiate.py" "$sock" "$@" > "$tmp/told"
  hidden
  [ -z "$sends_text" ] || grep -E 'the export|there is no' "$tmp/told"
}

logged ()
{
  grep -E -- "$1" "${server_log[main]}" || fail "not in the log: $1"
}

# Bad L2 entries, met while the image is served; and then it is marked corrupt.
mkdir "$tmp/hidden"
make_image "$tmp/hidden/a.qcow2" 1M
qemu-io -f qcow2 -c 'write -P 1 0 128k' "$tmp/hidden/a.qcow2"
header_patch "$tmp/hidden/a.qcow2" $((4 << 16)) Q 0x8000000000000200
start_nbdkit file="$tmp/hidden/a.qcow2"
negotiate
fails "$uri" 'h.pread(4096, 8192)'
fails "$uri" 'h.pwrite(b"x" * 512, 512)'
fails "$uri" 'h.block_status(65536, 0, lambda *a: 0)'
fails "$uri" 'h.cache(512, 1024)'
fails "$(export_uri other)" 'pass'
fails "$uri" '
try:
    h.pread(512, 0)
except nbd.Error:
    h.pread(512, 2 << 20)'
logged 'hidden/a.qcow2: image is corrupt: L2'
logged 'error: there is no snapshot "other"$'
stop_nbdkit
is_marked_corrupt "$tmp/hidden/a.qcow2"
start_nbdkit file="$tmp/hidden/a.qcow2"
negotiate
logged 'hidden/a.qcow2: served read-only'
stop_nbdkit

# A directory, with an image that is no image.
printf 'QFI\373 no more than that' > "$tmp/hidden/bad.qcow2"
start_nbdkit dir="$tmp/hidden"
negotiate bad.qcow2
fails "$(export_uri bad.qcow2)" 'pass'
logged 'hidden/bad.qcow2'
stop_nbdkit

# A server behind ours that is lost.
make_image "$tmp/hidden/far.qcow2" 1M
qemu-io -f qcow2 -c 'write -P 1 0 64k' "$tmp/hidden/far.qcow2"
PLUGIN='file' start_nbdkit_as hidden "$tmp/hidden/far.qcow2"
start_nbdkit "$uri" lock=false reconnect=0
fails "$uri" "
import os
os.kill(${server_pid[hidden]}, 9)
h.pread(512, 0)"
logged 'hidden.sock'
negotiate
stop_nbdkit
