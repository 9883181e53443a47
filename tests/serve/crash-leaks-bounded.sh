#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# How much does a server leak that is killed when it has answered all requests?  What it
# had taken ahead, and what was freed and waited for a checkpoint: at most 144 MiB, which
# the next start gives back.  In version 2 nothing is given back, so it is at most 1 MiB,
# and several crashes add up to no more than that each.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_python_nbd

img="$tmp/a.qcow2"
interval=0
compress=()

# leaked IMAGE: in bytes.
leaked ()
{
  local n

  n=$({ qemu-img check --output=json -f qcow2 "$1" || :; } |
      sed -n 's/.*"leaks": \([0-9]*\).*/\1/p')
  echo $(( ${n:-0} * 65536 ))
}

# crash WHAT: a program for several connections h[0] ... h[7].  Then the server is killed.
crash ()
{
  start_nbdkit file="$img" checkpoint-interval="$interval" "${compress[@]}"
  "$python" - "$uri" "$nbdkit_pid" "$1" <<'PY'
import nbd, os, signal, sys, threading, time
K, M = 1 << 10, 1 << 20
h = [nbd.NBD() for i in range(8)]
for c in h:
    c.connect_uri(sys.argv[1])

def together(f):
    "Calls f with each connection, all at the same time."
    failed = []
    def call(c, i):
        try:
            f(c, i)
        except Exception as e:
            failed.append(e)
    threads = [threading.Thread(target=call, args=(c, i)) for i, c in enumerate(h)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed

exec(sys.argv[3])
os.kill(int(sys.argv[2]), signal.SIGKILL)
PY
  wait "$nbdkit_pid" || :
  unset "server_pid[main]"
}

# bounded MAX WHAT: a crash after WHAT leaks at most MAX more bytes.
bounded ()
{
  local before after

  before=$(leaked "$img")
  crash "$2"
  after=$(leaked "$img")
  [ $(( after - before )) -le "$1" ] || fail "$(( after - before )) bytes leaked: $2"
}

# All clusters are allocated, and no space is used for them.
large ()
{
  rm -f "$img"
  make_image "$img" 1G "preallocation=metadata,$1"
}

one='h[0].trim(256 * M, 0)'
one_fua='h[0].trim(256 * M, 0, nbd.CMD_FLAG_FUA)'
eight='together(lambda c, i: c.trim(64 * M, i * 64 * M))'
parts='for i in range(14): h[0].trim(32 * M, i * 32 * M)'
zeros='together(lambda c, i: c.zero(48 * M, (i + 8) * 48 * M))'
mixed='for i in range(20):
    h[0].trim(25 * M, i * 25 * M)
    if i % 3 == 0: h[1].flush()'
flush='h[7].flush()'

for what in "$one" "$one; $flush" "$one_fua" "$eight" "$eight; $flush" "$parts" \
            "$zeros; $flush" "$mixed"; do
  large compat=1.1
  bounded $(( 144 << 20 )) "$what"
  start_nbdkit file="$img"
  nbdsh_run -c 'h.flush()'
  stop_nbdkit
  check_clean "$img"
done

# Requests that free little are no different.
small='for i in range(200): h[0].trim(64 * K, (600 + i) * M)'
small_fua='for i in range(40): h[0].trim(640 * K, (800 + i) * M, nbd.CMD_FLAG_FUA)'
small_flush='for i in range(30):
    h[0].trim(960 * K, (840 + i) * M)
    h[i % 8].flush()'
small_together='together(lambda c, i:
    [c.trim(64 * K, (900 + 8 * i) * M + j * 128 * K) for j in range(40)])'

large compat=0.10
for what in "$one; $flush" "$eight" "$parts; $flush" "$small" "$small
$flush" "$small_fua" "$small_flush" "$small_together" "$small_together; $flush" "$zeros"; do
  bounded $(( 1 << 20 )) "$what"
done
large compat=0.10
bounded $(( 1 << 20 )) "$one_fua"
bounded $(( 1 << 20 )) "$mixed"

# What the timer makes durable.  (Holes are punched after that.)
rm "$img"
make_image "$img" 1G compat=0.10
interval=1
bounded $(( 1 << 20 )) "
h[0].pwrite(b't' * 16 * M, 0)
h[0].flush()
before = os.stat('$img').st_blocks
h[0].trim(16 * M, 0)
while os.stat('$img').st_blocks > before - 8 * M / 512:
    time.sleep(0.01)"
interval=0

# What is written, and written again.
rm "$img"
make_image "$img" 1G compat=0.10
new='for i in range(60): h[i % 8].pwrite(b"w" * 64 * K, (i + 1) * 256 * K)'
new_flush='for i in range(60):
    h[0].pwrite(b"w" * 64 * K, (i + 100) * M)
    h[0].flush()'
again='h[0].pwrite(b"x" * 16 * M, 200 * M)
h[0].trim(16 * M, 200 * M)
h[0].flush()'
for what in "$new" "$new_flush" "$again" "$again" "$again"; do
  bounded $(( 1 << 20 )) "$what"
done
compress=(compress=on)
bounded $(( 1 << 20 )) 'for i in range(90):
    h[i % 8].pwrite(b"z" * 64 * K, (i + 300) * M)
    if i % 7 == 0: h[0].flush()'
compress=()

# This gives all of it back.
check_leaks_only "$img"
[ "$(leaked "$img")" -gt 0 ]
start_and_end file="$img" check=repair-leaks
check_clean "$img"
