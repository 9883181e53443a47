#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A server that is told to end, by a signal or over QMP, answers the requests that it has
# got, closes all connections, also idle ones, and ends; no client gets an error.  What was
# written is there, and the image has no leaks.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_filter delay
in_network_namespace

# client PATTERN HOW: writes 64 clusters, in requests that are in flight when the server is
# told to end; beside it are two connections without requests.
client ()
{
  "$python" - "$1" "$2" "$uri" "$nbdkit_pid" "$control" <<'PY'
import json, nbd, os, signal, socket, sys, time
pattern, how, uri, pid, control = sys.argv[1:]

def end():
    if how == "signal":
        os.kill(int(pid), signal.SIGTERM)
        return
    s = socket.socket(socket.AF_UNIX)
    s.connect(control)
    f = s.makefile("rw")
    f.readline()
    for name in "qmp_capabilities", "quit":
        print(json.dumps({"execute": name}), file=f, flush=True)
        assert "return" in json.loads(f.readline())

def connect():
    h = nbd.NBD()
    h.connect_uri(uri)
    return h

idle = [connect(), connect()]
h = connect()
done = []
for i in range(64):
    h.aio_pwrite(bytes([int(pattern)]) * 65536, i << 16,
                 completion=lambda error: done.append(error.value) or 1)
while h.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:  # all are sent
    h.poll(-1)
began = time.monotonic()
end()
for h in [h] + idle:                                    # they are closed
    try:
        while not (h.aio_is_closed() or h.aio_is_dead()):
            h.poll(-1)
    except nbd.Error:
        pass
# (Its patience is two seconds.)
if done != [0] * 64 and time.monotonic() - began >= 2:
    sys.exit(3)
assert done == [0] * 64, done
PY
}

# shows PATTERN
shows ()
{
  check_clean "$tmp/a.qcow2"
  qemu-io -r -f qcow2 -c "read -P $1 0 4M" "$tmp/a.qcow2" | tee "$tmp/read.log"
  ! grep -q 'verification failed' "$tmp/read.log" || fail "the disk contains other data"
}

# (A file that is served over NBD does not grow.)
qemu-img create -q -f qcow2 -o preallocation=falloc "$tmp/a.qcow2" 16M
control="$sockdir/control"
pattern=0
# ended HOW: the server, whose storage is slow, is told to end.
ended ()
{
  local status=0

  pattern=$((pattern + 1))
  client "$pattern" "$1" || status=$?
  await_nbdkit
  if [ $status -eq 3 ]; then    # the machine is too busy to show it
    stop_nbdkit storage
    return
  fi
  [ $status -eq 0 ]
  [ ! -s "$tmp/main.log" ] || fail "the server has printed something"
  stop_nbdkit storage
  shows "$pattern"
}

for how in signal quit; do
  for threads in 1 16; do
    PLUGIN=file start_nbdkit_as storage --filter=delay -- "$tmp/a.qcow2" delay-write=20ms
    start_nbdkit -t "$threads" -- "$uri" lock=false control="$control"
    ended "$how"
  done
done

# nbdkit may take long to send an answer.
if strace -f -o /dev/null true; then
  for how in signal quit; do
    PLUGIN=file start_nbdkit_as storage -- "$tmp/a.qcow2"
    NBDKIT_WRAPPER='strace -D -f -qq -o /dev/null -e inject=sendto:delay_enter=20000' \
      start_nbdkit "$uri" lock=false control="$control"
    ended "$how"
  done
fi

# Over TCP, with IPv6 and IPv4.
if [ -n "${TEST_IN_NETWORK:-}" ]; then
  for host in '[::1]' 127.0.0.1; do
    PLUGIN=file start_nbdkit_as storage --filter=delay -- "$tmp/a.qcow2" delay-write=20ms
    rm -f "$tmp/main.pid"
    "$NBDKIT" -f -P "$tmp/main.pid" "$PLUGIN" "$uri" lock=false </dev/null \
      >"$tmp/main.log" 2>&1 &
    nbdkit_pid=$!
    server_pid[main]=$nbdkit_pid
    server_log[main]="$tmp/main.log"
    await -p "$nbdkit_pid" test -s "$tmp/main.pid"
    uri="nbd://$host"
    ended signal
  done
fi
