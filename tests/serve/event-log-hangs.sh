#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Nobody waits for log=: while nobody reads what the server writes to stderr, clients are
# served and the server ends.  The warnings that it cannot write go where they go without a
# log.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/a.qcow2" 1M
mkfifo "$tmp/pipe"
exec 7<> "$tmp/pipe"
dd if=/dev/zero of=/dev/fd/7 bs=4k count=16 oflag=nonblock || :
# Only the log writes there: nbdkit says nothing.
"$NBDKIT" -f -U "$sockdir/main.sock" -P "$tmp/pid" "$PLUGIN" "$tmp/a.qcow2" log=stderr \
  2>&7 7>&- &
server_pid[main]=$!
server_log[main]=/dev/null
await -p "${server_pid[main]}" test -s "$tmp/pid"
for _ in $(seq 20); do
  qemu-io -f raw -c 'write 0 4k' -c flush "nbd+unix:///?socket=$sockdir/main.sock"
done
stop_nbdkit
check_clean "$tmp/a.qcow2"
exec 7>&-

# A warning that the log leaves out, or cannot write.
header_patch "$tmp/a.qcow2" 72 Q 2
for parameters in "log=$tmp/log log-level=error" log=/dev/full; do
  # shellcheck disable=SC2086
  start_nbdkit "$tmp/a.qcow2" $parameters
  nbdinfo "$uri" | grep 'is_read_only: true'
  stop_nbdkit
  grep 'served read-only: ' "${server_log[main]}"
done
