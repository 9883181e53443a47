#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image in a file, behind nbd-server (the NBD project's own), with few and with many
# of its options: what was flushed is there after our server, or nbd-server, was killed.
# Without the option flush, the image is read-only.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/engines.sh"
requires_tools
requires nbdcopy --version
requires nbd-server -V

truncate -s 32M "$tmp/far"
parts=(far)
far_uri="nbd+unix:///disk?socket=$sockdir/nbd.sock"
config=
engine_ops=800

start_engine ()
{
  rm -f "$sockdir/nbd.sock" "$tmp/far.pid"
  cat > "$tmp/config" <<END
[generic]
unixsock = $sockdir/nbd.sock
listenaddr = 127.0.0.1
port = 10809
[disk]
exportname = $tmp/far
$config
END
  # It always goes into the background.
  nbd-server -C "$tmp/config" -p "$tmp/far.pid"
  await test -s "$tmp/far.pid"
  server_pid[far]=$(cat "$tmp/far.pid")
  await_daemon far nbdinfo --size "$far_uri"
}

# It listens on a TCP port, too.
requires_network

config=$'flush = true'
engine_keeps_what_was_flushed
kill_part far
config=$'flush = true\nfua = true\nrotational = true\ntrim = true'
engine_keeps_what_was_flushed
kill_part far

config=$'fua = true'
start_engine
start_nbdkit "$far_uri" lock=false
nbdsh_run -c 'assert h.is_read_only()'
stop_nbdkit
grep 'served read-only: .*no flush' "$tmp/main.log"
