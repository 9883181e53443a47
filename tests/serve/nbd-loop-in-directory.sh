#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Images of a directory whose backing files are images that the same server serves.  A
# chain that leads back to its beginning is refused after connect-timeout, to the client
# that asked for it, and then the server is at rest; other images can be used meanwhile.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

here="$sockdir/main.sock"
# image NAME BACKING
image ()
{
  qemu-img create -q -f qcow2 -u -F raw -b "nbd+unix:///$2?socket=$here" \
    "$tmp/images/$1" 1M
}

mkdir "$tmp/images"
image self self
image a b
image b a
image c d
image d e
image e c
image top base
qemu-img create -q -f qcow2 "$tmp/images/base" 1M
qemu-io -f qcow2 -c 'write -P 7 0 1M' "$tmp/images/base" >/dev/null

start_nbdkit dir="$tmp/images" allow-uri="nbd+unix:///?socket=$here" lock=false \
  connect-timeout=3

sockets ()
{
  find "/proc/$nbdkit_pid/fd" -lname 'socket:*' | wc -l
}

# at_rest N: the server has so many sockets.
at_rest ()
{
  [ "$(sockets)" -eq "$1" ]
}

none="$(sockets)"
uri="$(export_uri top)"
hold_connection
before="$(sockets)"
for name in self a c a; do
  if "$python" -c 'import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])' "$(export_uri $name)"; then
    fail "the loop of $name is served"
  fi
  "$python" -c 'import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
assert h.pread(4096, 65536) == b"\7" * 4096' "$(export_uri top)"
  await at_rest "$before"
done
drop_connections
await at_rest "$none"
stop_nbdkit
