#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The NBD server with the image is stopped and says nothing more.  Told to end, our server
# ends, with or without a request that waits for an answer.  And one that admits only one
# connection is not asked for more again and again.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_filter limit
requires_filter delay
. "$srcdir/lib/engines.sh"

make_image "$tmp/far" 16M
truncate -s 32M "$tmp/far"

# ends_with SCRIPT: the server ends although the one behind it is silent.
ends_with ()
{
  local far_pid main_pid

  PLUGIN=file start_nbdkit_as far "$tmp/far"
  far_pid=$nbdkit_pid
  start_nbdkit "$uri" lock=false reconnect=1
  main_pid=$nbdkit_pid
  nbdsh_run -c 'h.pread(512, 0)'
  kill -STOP "$far_pid"
  if [ "$1" ]; then
    nbdsh_run -c "$1" &
    helper_pids+=($!)
    await -p $! test -e "$tmp/asked"
  fi
  kill -TERM "$main_pid"
  await_end "$main_pid"
  kill -CONT "$far_pid"
  wait "$main_pid" || :
  unset 'server_pid[main]'
  stop_nbdkit far
}

ends_with ''
ends_with 'h.aio_pread(nbd.Buffer(65536), 1 << 20); open("'"$tmp/asked"'", "w")
while h.aio_in_flight() > 0: h.poll(-1)'

PLUGIN=file start_nbdkit_as far --filter=limit --filter=delay -- "$tmp/far" limit=1 rdelay=2ms
start_nbdkit "$uri" lock=false
nbdsh_run -c - <<'PY'
h.pwrite(b"a" * (4 << 20), 0)
h.flush()
for turn in range(10):
    for i in range(32):
        h.aio_pread(nbd.Buffer(65536), i * 65536)
    while h.aio_in_flight() > 0:
        h.poll(-1)
PY
stop_nbdkit
stop_nbdkit far
n=$(grep -ci 'limit' "$tmp/far.log" || :)
echo "$n connections refused"
[ "$n" -le 20 ] || fail "a server that admits one connection was asked $n times"

# One that is silent on more connections than one holds up no request for as long as
# connect-timeout= says, an hour.
start_daemon quiet "$python" "$srcdir/lib/remoteserver.py" "$sockdir/quiet.sock" \
  "$tmp/far" --multi-conn --answer 1 --delay 0.01
await_daemon quiet test -S "$sockdir/quiet.sock"
start_nbdkit "nbd+unix:///?socket=$sockdir/quiet.sock" lock=false connect-timeout=3600
nbdsh_run -c - <<'PY'
for i in range(32):
    h.aio_pread(nbd.Buffer(65536), i * 65536)
while h.aio_in_flight() > 0:
    h.poll(-1)
PY
stop_nbdkit
grep silent "$tmp/quiet.log"
