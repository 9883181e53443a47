#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Requests of nearly 4G take little time, also with the smallest clusters; and they end soon
# if the client disconnects meanwhile.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
most=$(((4 << 30) - 512))
half=$(((2 << 30) - 512))

# They take a few seconds; without bounds on what they hold, minutes.
"$NBDKIT" -U - "$PLUGIN" file="$tmp/below.qcow2" create=4G cluster-size=2M \
  preallocation=metadata --run 'nbdinfo --size "$uri"'
sample 1 trim zero
for request in "${sample[@]}"; do
  how=(preallocation=metadata)
  [ "$request" = trim ] || how=(backing-file="$tmp/below.qcow2" backing-format=qcow2)
  NBDKIT_WRAPPER="${soon[*]}" start_nbdkit file="$img" create=4G cluster-size=512 "${how[@]}"
  nbdsh_run -c "h.$request($most, 0)"
  stop_nbdkit
  check_clean "$img"
  rm "$img"
done

# In the middle of a request the client is killed: nbdkit refuses one that has not begun.
# (With more requests than one in flight nbdkit 1.32 may abort when it answers them.)
start_nbdkit -v -- file="$img" create=2G cluster-size=512 preallocation=metadata
"$python" -c "
import nbd, os, signal
h = nbd.NBD()
h.connect_uri('$uri')
h.aio_trim($half, 0)
while 'trim count=' not in open('${server_log[main]}').read():
    h.poll(0)
os.kill(os.getpid(), signal.SIGKILL)" || :
await grep -q 'aborting sleep' "${server_log[main]}"
server_lives
nbdsh_run -c 'assert h.pread(512, 1 << 20) == bytes(512)'
stop_nbdkit
check_clean "$img"
rm "$img"

# A client that sends nothing more gets the answer to what it has sent: after NBD_CMD_DISC,
# and after it has shut down its side of the connection.  (The request is short enough to
# end within the two seconds that it has then, also on a busy machine.  nbdkit itself
# refuses it, if it reads what follows before it calls the plugin: then once more.)
cat > "$tmp/last.py" <<'PY'
import socket, struct, sys, time
path, how = sys.argv[1:]
s = socket.socket(socket.AF_UNIX)
s.connect(path)
f = s.makefile("rb")
f.read(18)
s.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))  # EXPORT_NAME
f.read(10)
def send(type, cookie, count):
    s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, type, cookie, 0, count))
send(4, 7, 16 << 20)                                                    # TRIM
if how == "disc":
    send(2, 8, 0)
else:
    s.shutdown(socket.SHUT_WR)
answer = f.read(16)
assert len(answer) == 16, answer
magic, error, cookie = struct.unpack(">IIQ", answer)
assert (magic, cookie) == (0x67446698, 7), answer
sys.exit(error and 3)
PY
sample 1 disc shutdown
for how in "${sample[@]}"; do
  start_nbdkit -v -- file="$img" create=1G cluster-size=512 preallocation=metadata
  until
    status=0
    "$python" "$tmp/last.py" "$sock" "$how" || status=$?
    [ "$status" = 0 ]
  do
    [ "$status" = 3 ] || fail "no answer after $how"
    ! grep -q 'qcow2: trim count' "${server_log[main]}" || fail "refused after $how"
  done
  stop_nbdkit
  check_clean "$img"
  rm "$img"
done

# In the middle of a request the server is to end.  (The request may end before, as it has
# two seconds; that it is given up after them, unit/disk/long-requests shows.)
start_nbdkit -v -- file="$img" create=2G cluster-size=512 preallocation=metadata
"$python" -c "
import nbd
h = nbd.NBD()
h.connect_uri('$uri')
h.trim($half, 0)" 2>"$tmp/client.log" &
client=$!
await grep -q 'trim count=' "${server_log[main]}"
stop_nbdkit
grep 'aborting sleep' "${server_log[main]}" || :
wait "$client" || :
check_clean "$img"
