#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A client with several connections is killed while large requests are in flight: the
# server goes on, and what was flushed is there.  nbdkit before 1.34 often aborts then,
# whatever the plugin is, and only clusters are leaked.  With one thread (-t 1) it does not,
# and nbdkit 1.34 and newer never do.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# Flushes a sector that it numbers, has large requests in flight on four connections, does
# not read the answers, and dies when they are on their way.
cat > "$tmp/client.py" <<'PY'
import nbd, os, select, signal, sys
uri, round = sys.argv[1], int(sys.argv[2])
connections = []
for i in range(4):
    h = nbd.NBD()
    h.connect_uri(uri)
    connections.append(h)
h.pwrite(b"%512d" % round, 512 * round)
h.flush()
buffers = []
for i, h in enumerate(connections):
    h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"x") * 4096), (1 + i) << 20)
    for n in range(15):
        buffers.append(nbd.Buffer(2 << 20))
        h.aio_pread(buffers[-1], n << 20)
for h in connections:
    select.select([h.aio_get_fd()], [], [])
os.kill(os.getpid(), signal.SIGKILL)
PY

# rounds N NBDKIT-OPTION...: prints how often nbdkit aborted.  That is a failure, unless
# $may_abort: chance decides whether it happens.
rounds ()
{
  local n="$1" round aborted=0
  shift

  rm -f "$img"
  make_image "$img" 64M
  start_nbdkit "$@" -- file="$img"
  for ((round = 1; round <= n; ++round)); do
    "$python" "$tmp/client.py" "$uri" "$round" || :
    # Its answer comes when the requests of the client that has gone are done.
    if ! "$python" -m nbd -u "$uri" -c "
assert h.pread(512, 512 * $round) == b'%512d' % $round"; then
      status=0
      wait "$nbdkit_pid" || status=$?
      unset "server_pid[main]"
      cat "${server_log[main]}"
      [ "$status" = 134 ] || fail "the server ended with status $status"
      grep 'Assertion .sock >= 0. failed' "${server_log[main]}"
      aborted=$((aborted + 1))
      check_leaks_only "$img"
      start_nbdkit "$@" -- file="$img"
      "$python" -m nbd -u "$uri" -c "
assert h.pread(512, 512 * $round) == b'%512d' % $round"
    fi
  done
  stop_nbdkit
  check_clean "$img"
  echo "$version aborted in $aborted of $n rounds: $*"
  if [ "$aborted" -gt 0 ]; then
    "$may_abort" || fail "nbdkit aborted"
    echo "(a fault of nbdkit before 1.34)"
  fi
}

img="$tmp/a.qcow2"
version="$("$NBDKIT" --version)"
may_abort=false
if printf '%s\n' "$version" 'nbdkit 1.33.99' | sort -C -V; then
  may_abort=true
fi
rounds 8 -t 16
may_abort=false
rounds 4 -t 1
