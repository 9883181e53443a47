#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What clients have not flushed is in the image soon, as checkpoint-interval= says, and
# survives a server that is killed.  With 0 it waits for a flush.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

# kill_server NAME
kill_server ()
{
  local pid="${server_pid[$1]}"

  kill -KILL "$pid"
  wait "$pid" || :
  unset "server_pid[$1]"
}

# holds IMAGE CHARACTER: is it in the image?
holds ()
{
  qemu-io -U -r -f qcow2 -c "read -P $(printf %d "'$2") 0 1M" "$1" > "$tmp/out"
  ! grep -q 'verification failed' "$tmp/out"
}

# write_and_hold CHARACTER: writes, flushes nothing, and keeps the connection.
write_and_hold ()
{
  "$python" - "$uri" "$tmp/written" "$1" <<'PY' &
import nbd, sys, time
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(sys.argv[3].encode() * (1 << 20), 0)
open(sys.argv[2], "w").close()
while h.aio_is_ready():
    h.poll(1000)
PY
  await -p $! test -e "$tmp/written"
  rm "$tmp/written"
}

make_image "$tmp/never.qcow2" 8M
make_image "$tmp/soon.qcow2" 8M
make_image "$tmp/default.qcow2" 8M
start_nbdkit_as never file="$tmp/never.qcow2" checkpoint-interval=0
write_and_hold w
start_nbdkit_as default file="$tmp/default.qcow2"
write_and_hold w
start_nbdkit_as soon file="$tmp/soon.qcow2" checkpoint-interval=1
write_and_hold w

await holds "$tmp/soon.qcow2" w
await holds "$tmp/default.qcow2" w
if holds "$tmp/never.qcow2" w; then fail "written without a flush"; fi

for img in never soon default; do
  kill_server "$img"
  check_leaks_only "$tmp/$img.qcow2"
done
wait
holds "$tmp/soon.qcow2" w
holds "$tmp/default.qcow2" w

# The statistics tell of it.
start_nbdkit file="$tmp/never.qcow2" checkpoint-interval=1 stats="$tmp/stats"
write_and_hold x
await holds "$tmp/never.qcow2" x
kill "$!"
wait "$!" || :
stop_nbdkit
grep '"timed": [1-9]' "$tmp/stats"

refused "checkpoint-interval" "$tmp/never.qcow2" checkpoint-interval=-1
refused "checkpoint-interval" "$tmp/never.qcow2" checkpoint-interval=soon
refused "checkpoint-interval" "$tmp/never.qcow2" checkpoint-interval=99999999
