#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image behind an NBD server on a vsock, as of a virtual machine and its host: it is
# written, checked and read again.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
. "$srcdir/lib/engines.sh"

# A port on which nothing listens, if connections to this machine itself (CID 1) arrive.
port="$("$python" - <<'PY'
import socket
try:
    s = socket.socket(socket.AF_VSOCK)
    s.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
    s.listen()
    c = socket.socket(socket.AF_VSOCK)
    c.settimeout(1)
    c.connect((1, s.getsockname()[1]))
    print(s.getsockname()[1])
except (AttributeError, OSError):
    pass
PY
)"
[ "$port" ] || skip "no connections to CID 1: the kernel has no vsock_loopback"

make_image "$tmp/disk" 16M
truncate -s 32M "$tmp/disk"
start_daemon far "$NBDKIT" -f --vsock -p "$port" file "$tmp/disk"
await_daemon far nbdinfo --size "nbd+vsock://1:$port/"
start_nbdkit "nbd+vsock://1:$port/" lock=false
nbdsh_run -c - <<'PY'
for i in range(16):
    h.pwrite(bytes([i + 1]) * 65536, i << 20)
h.flush()
PY
stop_nbdkit
check_clean "$tmp/disk"
qemu-img create -q -f qcow2 -u -F qcow2 -b "nbd+vsock://1:$port/" "$tmp/overlay" 16M
start_nbdkit "$tmp/overlay" allow-uri="nbd+vsock://1:$port/"
nbdsh_run -c - <<'PY'
for i in range(16):
    assert h.pread(65536, i << 20) == bytes([i + 1]) * 65536
PY
stop_nbdkit
