#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A server is replaced while QEMU's block layer writes to the disk (reconnect-delay): it
# gets no error, and everything it wrote is there, whether the old server was told to end
# or killed.  If the listening socket is inherited, as from systemd, no new client is
# refused meanwhile.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# written N: the writer has done so many of its writes.
written ()
{
  [ "$(grep -c 'wrote ' "$tmp/writes.log")" -ge "$1" ] || ! kill -0 "$writer" 2>/dev/null
}

# shows: the disk contains what the writer has written.
shows ()
{
  check_clean "$1"
  sed 's/^write -P \([0-9]*\)/read -P \1/' "$tmp/writes" |
    qemu-io -r -f qcow2 "$1" > "$tmp/reads.log"
  ! grep -q 'verification failed' "$tmp/reads.log" || fail "the disk contains other data"
  [ "$(grep -c 'read 65536/65536' "$tmp/reads.log")" -eq 2000 ] || fail "the disk cannot be read"
}

for i in {0..1999}; do
  echo "write -P $((i % 255 + 1)) $((i * 65536)) 64k"
done > "$tmp/writes"

# --- A socket of nbdkit's own: QEMU connects again.

far="driver=raw,file.driver=nbd,file.server.type=unix,\
file.server.path=$sockdir/main.sock,file.reconnect-delay=600"

# replaced HOW CACHE
replaced ()
{
  rm -f "$tmp/a.qcow2"
  qemu-img create -q -f qcow2 "$tmp/a.qcow2" 128M
  start_nbdkit "$tmp/a.qcow2"
  : > "$tmp/writes.log"         # here: what is awaited must not be in the old one
  qemu-io -t "$2" --image-opts "$far" \
    < "$tmp/writes" > "$tmp/writes.log" 2>&1 &
  writer=$!
  helper_pids+=("$writer")
  for n in 100 500 900 1300 1700; do
    await written "$n"
    "$1"
    start_nbdkit "$tmp/a.qcow2"
  done
  wait "$writer" ||
    { grep -v 'wrote\|ops/sec' "$tmp/writes.log"; fail "qemu-io has failed"; }
  [ "$(grep -c 'wrote ' "$tmp/writes.log")" -eq 2000 ] ||
    { cat "$tmp/writes.log"; fail "a write failed"; }
  # If all was written when a server was killed, nobody has connected to the next one, which
  # then leaves the image as it is.
  nbdinfo --size "$uri"
  stop_nbdkit
  shows "$tmp/a.qcow2"
}

replaced stop_nbdkit writeback
# (What was not flushed may be lost by a crash: each write is flushed.)
replaced kill9_nbdkit writethrough

# --- The same, with many requests in flight at any time.

# written_since TIME: the file has changed since then.
written_since ()
{
  [ "$(stat -c %y "$tmp/a.qcow2")" != "$1" ] || ! kill -0 "$writer" 2>/dev/null
}

# (nbdkit before 1.34 may abort when a connection ends with requests in flight.)
threads=()
[ "$(printf '%s\n' 1.34 "$("$NBDKIT" --version | sed 's/.* //')" | sort -V | head -n 1)" = 1.34 ] ||
  threads=(-t 1 --)
start_nbdkit "${threads[@]}" "$tmp/a.qcow2"
qemu-img bench -w -c 2000000000 -d 16 -s 4096 -S 69632 -t writeback --image-opts "$far" \
  > "$tmp/bench.log" 2>&1 &
writer=$!
helper_pids+=("$writer")
for _ in {1..3}; do
  before=$(stat -c %y "$tmp/a.qcow2")
  await written_since "$before"
  stop_nbdkit
  start_nbdkit "${threads[@]}" "$tmp/a.qcow2"
done
kill -0 "$writer" || { cat "$tmp/bench.log"; fail "qemu-img has failed"; }
kill "$writer"
wait "$writer" || :
stop_nbdkit
check_clean "$tmp/a.qcow2"

# --- An inherited socket.

rm -f "$tmp/a.qcow2"
qemu-img create -q -f qcow2 "$tmp/a.qcow2" 128M
"$python" - "$NBDKIT" "$PLUGIN" "$tmp/a.qcow2" "$sockdir/inherited" <<'PY'
import nbd, os, socket, subprocess, sys, threading, time
nbdkit, plugin, image, path = sys.argv[1:]
listening = socket.socket(socket.AF_UNIX)
listening.bind(path)
listening.listen(100)
os.dup2(listening.fileno(), 3)

def start():
    return subprocess.Popen(
        ["sh", "-c", 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"', "-", nbdkit, "-f", plugin,
         image], pass_fds=[3])

def end(server):
    server.terminate()
    assert server.wait() == 0, server.returncode

stop = threading.Event()
clients, errors = [0], []

def connect():
    while not stop.is_set():
        began = time.monotonic()
        try:
            h = nbd.NBD()
            h.connect_unix(path)
            clients[0] += 1
        except Exception as e:
            # (A server that ends gives a client one second for the handshake.)
            if time.monotonic() - began < 0.9:
                errors.append(e)

thread = threading.Thread(target=connect, daemon=True)
server = start()
thread.start()
for i in range(10):
    before = clients[0]
    while clients[0] < before + 20 and not errors:
        os.sched_yield()
    assert not errors, errors
    end(server)
    server = start()
stop.set()
thread.join()
nbd.NBD().connect_unix(path)    # it can be told to end
end(server)
assert not errors, errors
print(clients[0], "clients")
PY
check_clean "$tmp/a.qcow2"
