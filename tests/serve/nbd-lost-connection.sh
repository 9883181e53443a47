#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The NBD server with the image is killed.  If everything was flushed, clients wait for it
# to come back, and continue.  If not, every further flush fails, one line says why, and
# flushed data is there.  If it does not come back, requests fail after reconnect=
# seconds.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
export tmp sockdir NBDKIT

make_image "$tmp/far" 16M
truncate -s 32M "$tmp/far"

start_far ()
{
  PLUGIN=file start_nbdkit_as far "$tmp/far"
  far_uri="$uri"
}

# Clients that tell what to do by making files.
cat > "$tmp/turn.py" <<'END'
import errno, os, sys, time
tmp = os.environ["tmp"]
def turn(name):
    open(tmp + "/" + name, "w").close()
    while not os.path.exists(tmp + "/go-" + name):
        time.sleep(0.01)
END
cat > "$tmp/client.py" <<'END'
h.pwrite(b"a" * 65536, 1 << 20)
h.flush()
turn("flushed")
assert h.pread(4, 1 << 20) == b"aaaa"
h.pwrite(b"b" * 65536, 1 << 20)
h.flush()
h.pwrite(b"c" * 65536, 2 << 20)
turn("unflushed")
for what in (h.flush, h.flush, lambda: h.pwrite(b"d" * 512, 3 << 20)):
    try:
        what()
        sys.exit("success after a loss")
    except nbd.Error as e:
        assert e.errnum == errno.EIO, e
assert h.pread(4, 1 << 20) == b"bbbb"
END

start_client ()
{
  cat "$tmp/turn.py" "$tmp/$1.py" > "$tmp/client"
  "$python" -m nbd -u "$client_uri" -c 'exec(open("'"$tmp/client"'").read())' &
  client=$!
}

start_far
start_nbdkit "$far_uri" lock=false checkpoint-interval=0
client_uri="$uri"
start_client client
await -p $client test -e "$tmp/flushed"
kill9_nbdkit far
touch "$tmp/go-flushed"
start_far
await -p $client test -e "$tmp/unflushed"
kill9_nbdkit far
start_far
touch "$tmp/go-unflushed"
wait $client
kill -TERM "${server_pid[main]}"
wait "${server_pid[main]}" || :
unset 'server_pid[main]'
cat "$tmp/main.log"
[ "$(grep -c 'broke with writes that were not flushed' "$tmp/main.log")" = 1 ]
grep 'the connection is lost: trying to connect again' "$tmp/main.log"
grep 'the connection was lost for [0-9.]* seconds' "$tmp/main.log"

# What was flushed is there, and the next server takes up the image.
check_leaks_only "$tmp/far"
start_nbdkit "$far_uri" lock=false
nbdsh_run -c 'assert h.pread(65536, 1 << 20) == b"b" * 65536; h.pwrite(b"e", 0)'
stop_nbdkit
check_leaks_only "$tmp/far"

# It does not come back.
# The time counts from the loss: what comes later tries once, and does not wait 3 seconds
# again.
start_nbdkit "$far_uri" lock=false reconnect=3
nbdsh_run -c 'h.pread(512, 1 << 20)'
kill9_nbdkit far
nbdsh_run -c - <<'END'
import errno, time
began = time.monotonic()
for n in range(101):
    try:
        h.pread(512, 1 << 20)
        raise SystemExit("read from nowhere")
    except nbd.Error as e:
        assert e.errnum == errno.EIO, e
    took = time.monotonic() - began
    assert n > 0 or took >= 2.9
assert took < 100 * 3, took
END
start_far
uri="$client_uri"
nbdsh_run -c 'assert h.pread(512, 1 << 20) == b"b" * 512'
stop_nbdkit
grep 'there was no other within 3 seconds' "$tmp/main.log"
kill9_nbdkit far

# A write after a flush writes its pointer at once (core/request/checkpoint.c).  If there is
# no server then, nothing is lost: when it is back, the client may write again.
make_image "$tmp/far" 16M
truncate -s 32M "$tmp/far"
cat > "$tmp/patient.py" <<'END'
h.pwrite(b"a" * 65536, 1 << 20)
h.flush()
turn("settled")
try:
    h.pwrite(b"b" * 65536, 5 << 20)
    sys.exit("written to nowhere")
except nbd.Error as e:
    assert e.errnum == errno.EIO, e
turn("away")
h.pwrite(b"c" * 65536, 5 << 20)
h.flush()
assert h.pread(65536, 5 << 20) == b"c" * 65536
END
start_far
start_nbdkit "$far_uri" lock=false reconnect=1 checkpoint-interval=3600
client_uri="$uri"
start_client patient
await -p $client test -e "$tmp/settled"
kill9_nbdkit far
touch "$tmp/go-settled"
await -p $client test -e "$tmp/away"
start_far
touch "$tmp/go-away"
wait $client
stop_nbdkit
check_clean "$tmp/far"
kill9_nbdkit far

# None is there, or one that never says anything.
rm -f "$sockdir/silent.sock"
refused 'cannot connect: .*(refused|No such file)' "nbd+unix:///?socket=$sockdir/silent.sock"
"$python" - "$sockdir/silent.sock" <<'END' &
import socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen(5)
time.sleep(1000)
END
helper_pids+=($!)
await -p $! listens "$sockdir/silent.sock"
refused 'cannot connect: no answer in time' "nbd+unix:///?socket=$sockdir/silent.sock" \
  connect-timeout=1
