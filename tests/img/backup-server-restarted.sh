#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A backup goes on if the server is killed meanwhile and starts again: it has the disk of the
# instant, although that was written to since.  The next one removes what is left in the image,
# and is incremental, because bitmaps are durable.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires nbdkit --filter=pause null --version

make_image a.qcow2 16M
qemu-io -f qcow2 -c 'write -P 1 0 12M' a.qcow2
qemu-img convert -f qcow2 -O raw a.qcow2 instant.raw
snapshot_is_there ()
{
  qemu-img snapshot -U -l a.qcow2 | grep -q backup-
}
# The backup takes the instant, and opens it and its file, but cannot read anything.
start_nbdkit --filter=pause -- control="$sockdir/qmp" pause-control="$sockdir/pause" \
  bitmap-durable=true a.qcow2
"$python" -c '
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b"p")
assert s.recv(1) == b"P"' "$sockdir/pause"
"$IMG" --control "$sockdir/qmp" backup --verify --nbd "$uri" disk backups 2> err &
backup=$!
helper_pids+=("$backup")
await -p $backup test -s backups/000001.qcow2.part || fail "no copy: $(cat err)"
snapshot_is_there
kill9_nbdkit main
start_nbdkit control="$sockdir/qmp" bitmap-durable=true a.qcow2
nbdsh_run -c 'h.pwrite(b"2" * 5000000, 3000000); h.flush()'
wait $backup
cat err
grep 'warning: disk: the snapshot and bitmaps of this backup are removed by the next one' err
snapshot_is_there
qemu-img compare -f raw -F qcow2 instant.raw backups/000001.qcow2

"$IMG" --control "$sockdir/qmp" backup disk backups | grep 'incremental backup 2'
stop_nbdkit
check_clean a.qcow2
if snapshot_is_there; then fail "the snapshot is still there"; fi
qemu-img compare -f qcow2 -F qcow2 a.qcow2 backups/000002.qcow2
