#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# on-enospc=wait: requests for which the file system has no space wait until it has.
# Others go on meanwhile; there is one line in the log when waiting begins, and one when
# it ends.  When the client leaves or the server ends, they fail, and the image is clean.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_namespace

mkdir "$tmp/small"
mount -t tmpfs -o size=12m tmpfs "$tmp/small"
img="$tmp/small/a.qcow2" stats="$tmp/stats.json"

# start: a server with an image, and little space.
start ()
{
  rm -f "$tmp"/small/*
  make_image "$img" 64M
  head -c 6M /dev/zero > "$tmp/small/ballast"
  start_nbdkit file="$img" on-enospc=wait stats="$stats" "$@"
}

# lines TEXT N: the log has N lines with TEXT.
lines ()
{
  [ "$(grep -c "$1" "${server_log[main]}")" = "$2" ] || fail "not $2 lines of '$1'"
}

cat > "$tmp/common.py" <<PY
import json, nbd, os, subprocess, sys, time
def stats(name):
    return json.load(open("$stats"))["space"][name]
def write_stats():
    return json.load(open("$stats"))["images"][0]["exports"][0]["write"]
def until(condition, *hs):
    while not condition():
        for h in hs:
            h.poll(10)
        time.sleep(0.01)
def connect():
    h = nbd.NBD()
    h.connect_uri(sys.argv[1])
    return h
# The requests that have not been answered.
def unanswered(h, flying):
    flying[:] = [c for c in flying if not h.aio_command_completed(c)]
    return flying
# Writes of which some wait: those, and where they end.
def fill(h, count=1 << 16, depth=8):
    flying, at = [], 1 << 20
    while at < 60 << 20:
        while len(flying) < depth:
            b = nbd.Buffer.from_bytearray(bytearray(b"%8d" % at * (count // 8)))
            flying.append(h.aio_pwrite(b, at))
            at += count
        h.poll(10)
        if stats("waiting") == len(unanswered(h, flying)) == depth:
            return flying, at
    raise SystemExit("it did not fill up")
PY
# run: the script on stdin, after that.
run ()
{
  cat "$tmp/common.py" - > "$tmp/script.py"
  "$python" "$tmp/script.py" "$uri"
}

# Space from outside.
start
run <<PY
h, other = connect(), connect()
other.pwrite(b"A" * 65536, 0)
flying, end = fill(h)
# What needs no space is served, and flushes what it wrote.
other.pwrite(b"B" * 65536, 0)
assert other.pread(65536, 0) == b"B" * 65536
other.flush()
other.pwrite(b"C" * 4096, 4096, nbd.CMD_FLAG_FUA)
assert stats("waiting") == len(flying)
until(lambda: stats("ms") > 1000)
os.unlink("$tmp/small/ballast")
until(lambda: not unanswered(h, flying), h)
h.flush()
assert other.pread(65536, 0) == b"B" * 4096 + b"C" * 4096 + b"B" * 57344
for o in range(1 << 20, end, 65536):
    assert h.pread(65536, o) == b"%8d" % o * 8192, o
until(lambda: stats("waiting") == 0)
assert stats("pauses") == 1 and stats("requests") == 8
PY
stop_nbdkit
lines 'no space is left: requests wait' 1
lines 'requests waited for space .* and there is some again' 1
lines 'No space left on device' 0
lines 'no cluster is free' 0
check_clean "$img"

# The same, with a log of events: there it is, and it is no error.
start log="$tmp/log"
run <<PY
h = connect()
flying, end = fill(h)
os.unlink("$tmp/small/ballast")
until(lambda: not unanswered(h, flying), h)
PY
stop_nbdkit
[ "$(grep -c " warning no-space image=\"$img\" text=\"no space is left" "$tmp/log")" = 1 ]
[ "$(grep -c " info space image=\"$img\" text=\"requests waited" "$tmp/log")" = 1 ]
lines 'space' 0

# Space from the guest: what it trims is used again.
start
run <<PY
h, other = connect(), connect()
other.pwrite(b"A" * (1 << 20), 0)
flying, end = fill(h)
other.trim(1 << 20, 0)
other.flush()
until(lambda: not unanswered(h, flying), h)
for o in range(1 << 20, end, 65536):
    assert h.pread(65536, o) == b"%8d" % o * 8192, o
PY
stop_nbdkit
lines 'there is some again' 1
check_clean "$img"

# Zeros and flushes wait, too.  (With clusters of 4K, tables come often.)
rm -f "$tmp"/small/*
make_image "$img" 64M cluster_size=4k
start_nbdkit file="$img" on-enospc=wait stats="$stats"
run <<PY
h, other = connect(), connect()
ballast = open("$tmp/small/ballast", "wb", buffering=0)
try:
    while True:
        ballast.write(bytes(65536))
except OSError:
    pass
b = nbd.Buffer.from_bytearray(bytearray(b"X" * 3000))
flying = [h.aio_zero(1000, 5000, None, nbd.CMD_FLAG_NO_HOLE), h.aio_pwrite(b, 1 << 20),
          h.aio_flush()]
until(lambda: stats("waiting") >= 1, h)
ballast.truncate(0)
until(lambda: not unanswered(h, flying), h)
assert h.pread(3000, 1 << 20) == b"X" * 3000
PY
stop_nbdkit
check_clean "$img"

# The client goes: its request ends, and counts as no error of the disk.  (One: nbdkit 1.32 may abort when a client goes that
# waits for more.)
start
run <<PY
child = subprocess.Popen([sys.executable, "-c", open("$tmp/common.py").read() + """
h = connect()
fill(h, depth=1)
print("full", flush=True)
time.sleep(100)
""", sys.argv[1]], stdout=subprocess.PIPE)
assert child.stdout.readline() == b"full\n"
assert stats("waiting") == 1
child.kill()
until(lambda: stats("waiting") == 0)
h = connect()
h.pwrite(b"A" * 4096, 1 << 20)
h.flush()
until(lambda: write_stats()["running"] == 0)
assert write_stats()["errors"] == 0, write_stats()
PY
lines 'requests waited for space .* and there is still none' 1
stop_nbdkit
check_clean "$img"

# The server ends: they fail with ENOSPC.
start
run <<PY
import errno
h = connect()
flying, end = fill(h)
os.kill($nbdkit_pid, 15)
errors = set()
for c in flying:
    try:
        while not h.aio_command_completed(c):
            h.poll(-1)
    except nbd.Error as e:
        errors.add(e.errnum)
assert errors and errors <= {errno.ENOSPC, errno.ESHUTDOWN, errno.ENOTCONN}, errors
PY
wait "$nbdkit_pid"
unset "server_pid[main]"
lines 'requests waited for space .* and there is still none' 1
check_clean "$img"

# Without it they fail at once.
rm "$img"
make_image "$img" 64M
start_nbdkit file="$img" on-enospc=fail stats="$stats"
nbdsh_run -c - <<'PY'
import errno
try:
    for o in range(0, 64 << 20, 65536):
        h.pwrite(b"x" * 65536, o)
    raise SystemExit("it did not fill up")
except nbd.Error as e:
    assert e.errnum == errno.ENOSPC, e
PY
stop_nbdkit
lines 'requests wait' 0
check_clean "$img"
umount "$tmp/small"
