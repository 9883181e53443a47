#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU's programs and the server exclude each other, in both directions, with the same
# locks, and with a clear message.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version

img="$tmp/a.qcow2" top="$tmp/top.qcow2"
make_image "$img" 1M
qemu-io -f qcow2 -c 'write -P 1 0 64k' "$img"
make_image "$top" 1M "backing_file=a.qcow2,backing_fmt=qcow2"
requires qemu-img info "$img"

shared='Failed to get shared "write" lock'
exclusive='Failed to get "write" lock'

# --- we write

start_nbdkit file="$img"
hold_connection
for cmd in "info $img" "check -f qcow2 $img" "map -f qcow2 $img" \
           "snapshot -l $img" "convert -f qcow2 -O raw $img $tmp/x.raw" \
           "info --backing-chain $top" "check -f qcow2 $top"; do
  # shellcheck disable=SC2086
  fails_with "$shared" qemu-img $cmd
done
fails_with "$shared" qemu-io -r -f qcow2 -c 'read 0 512' "$img"
qemu-img info -U "$img"
qemu-img check -U -f qcow2 "$img"
qemu-io -r -U -f qcow2 -c 'read 0 512' "$img"
fails_with "$exclusive" qemu-img check -r all -f qcow2 "$img"
fails_with "$exclusive" qemu-img snapshot -c s "$img"
fails_with "$exclusive" qemu-img resize -f qcow2 "$img" 2M
fails_with "$exclusive" qemu-io -f qcow2 -c 'write 0 512' "$img"
fails_with "$exclusive" qemu-img create -q -f qcow2 "$img" 1M
# Another of us.
refused 'lock.*another process' file="$img"
nbdsh_run -c 'h.pwrite(b"still here", 0); h.flush()'
drop_connections
stop_nbdkit
# Nothing is left behind.
check_clean "$img"
qemu-io -f qcow2 -c 'write -P 1 0 64k' "$img"

# --- we read

start_nbdkit -r -- file="$img"
hold_connection
qemu-img info "$img"
qemu-img check -f qcow2 "$img"
qemu-img info --backing-chain "$top"
qemu-io -r -f qcow2 -c 'read -P 1 0 64k' "$img"
fails_with "$exclusive" qemu-img snapshot -c s "$img"
fails_with "$exclusive" qemu-img check -r all -f qcow2 "$img"
fails_with "$exclusive" qemu-io -f qcow2 -c 'write 0 512' "$img"
drop_connections
stop_nbdkit

# --- we write an overlay: its backing file is locked for reading

start_nbdkit file="$top"
hold_connection
qemu-img info "$img"
qemu-io -r -f qcow2 -c 'read -P 1 0 64k' "$img"
fails_with "$exclusive" qemu-io -f qcow2 -c 'write 0 512' "$img"
fails_with "$shared" qemu-img info "$top"
drop_connections
stop_nbdkit

# --- lock=off

start_nbdkit file="$img" lock=off
hold_connection
qemu-img info "$img"
qemu-io -f qcow2 -c 'read 0 512' "$img"
drop_connections
stop_nbdkit

# --- QEMU has it

qemu_nbd ()
{
  rm -f "$tmp/q.pid"
  qemu-nbd -t -e 0 -k "$sockdir/q.sock" --pid-file="$tmp/q.pid" "$@" &
  helper_pids=("$!")
  await -p $! test -s "$tmp/q.pid"
}

# A writer: we can neither write nor read, and the message says who it is.
qemu_nbd -f qcow2 "$img"
stop='it may write, so stop it first'
refused "\"write\" lock: is another process using the image\?.*PID ${helper_pids[0]}.*: $stop" \
  file="$img"
refused "\"write\" lock: is another process.*: $stop" -r -- file="$img"
refused '"write" lock: is another process' file="$top"
start_nbdkit -r -- file="$img" lock=off
nbdsh_run -c 'assert h.pread(1, 0) == b"\1"'
stop_nbdkit
drop_connections

# A reader: we can read. To write is refused when we start, or when the client comes.
qemu_nbd -r -f qcow2 "$img"
start_nbdkit -r -- file="$img"
nbdsh_run -c 'assert h.pread(1, 0) == b"\1"'
stop_nbdkit
if start_nbdkit file="$img"; then
  refused_connection '"write" lock: is another process.*: stop it first, or open .* read-only'
  server_lives main
  drop_connections
  # It is gone: now it works.
  nbdsh_run -c 'h.pwrite(b"\2", 0); h.flush()'
  stop_nbdkit
  qemu_nbd -r -f qcow2 "$img"
else
  unset "server_pid[main]"
fi
# The overlay's backing file may have other readers.
start_nbdkit file="$top"
nbdsh_run -c 'h.pwrite(b"\3", 0); h.flush()'
stop_nbdkit
drop_connections

# A writer of a raw backing file.
truncate -s 1M "$tmp/base.raw"
make_image "$tmp/over-raw.qcow2" 1M "backing_file=base.raw,backing_fmt=raw"
qemu_nbd -f raw "$tmp/base.raw"
refused 'base\.raw.*"write" lock: is another process' file="$tmp/over-raw.qcow2"
drop_connections

# Another program, with locks of the older kind, which belong to a process.
"$python" - "$img" "$tmp/locked" <<'PY' &
import fcntl, signal, sys
f = open(sys.argv[1], "r+b")
for byte in (100, 101, 103, 201, 203):
    fcntl.lockf(f, fcntl.LOCK_SH, 1, byte)
open(sys.argv[2], "w").close()
signal.pause()
PY
helper_pids=("$!")
await -p $! test -e "$tmp/locked"
refused "\"write\" lock: .*PID ${helper_pids[0]}" file="$img"
drop_connections
start_nbdkit file="$img"
nbdsh_run -c 'h.pread(1, 0)'
stop_nbdkit
check_clean "$img"
