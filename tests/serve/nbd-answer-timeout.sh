#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# answer-timeout=: a server that is silent for so long, while requests wait for it, counts
# as lost.  Reads wait for it to return; if there are unflushed writes, a flush fails.
# The log says it, with the URI.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/far" 16M
truncate -s 32M "$tmp/far"
PLUGIN=file start_nbdkit_as far "$tmp/far"
far_uri="$uri" far_pid="$nbdkit_pid"

# in_log TEXT: waits until our server says so.
in_log ()
{
  await -p "${server_pid[main]}" grep -qF "$1" "$tmp/main.log"
}

start_nbdkit "$far_uri" lock=false
nbdsh_run -c 'h.pwrite(b"a" * 65536, 1 << 20); h.flush()'
stop_nbdkit
# (So long that it does not count as silent where the machine is busy.)
start_nbdkit "$far_uri" lock=false answer-timeout=5 checkpoint-interval=0
hold_connection         # so that no client that ends is the last one, which writes
kill -STOP "$far_pid"
nbdsh_run -c 'assert h.pread(65536, 1 << 20) == b"a" * 65536' &
reader=$!
in_log "$far_uri: the NBD server has been silent for 5 seconds"
kill -CONT "$far_pid"
wait "$reader"
in_log 'the connection was lost for'

cat > "$tmp/client.py" <<'END'
import errno, glob, os, signal
far = int(os.environ["far_pid"])
h.pwrite(b"b" * 65536, 2 << 20)
os.kill(far, signal.SIGSTOP)
# One of its threads could still answer.
while any(open(name).read().rpartition(")")[2].split()[0] not in "Tt"
          for name in glob.glob("/proc/%d/task/*/stat" % far)):
    pass
for i in range(2):
    try:
        h.flush()
        raise SystemExit("a silent server has flushed")
    except nbd.Error as e:
        assert e.errnum == errno.EIO, e
END
export far_pid
nbdsh_run -c - < "$tmp/client.py"
kill -CONT "$far_pid"
in_log "$far_uri: the connection broke with writes that were not flushed"
nbdsh_run -c 'assert h.pread(65536, 1 << 20) == b"a" * 65536'
drop_connections
kill -TERM "${server_pid[main]}"
wait "${server_pid[main]}" || :
unset 'server_pid[main]'
check_leaks_only "$tmp/far"

# Without a limit.
start_nbdkit "$far_uri" lock=false answer-timeout=0
nbdsh_run -c 'assert h.pread(65536, 1 << 20) == b"a" * 65536'
stop_nbdkit
refused 'answer-timeout=' "$far_uri" answer-timeout=x
refused 'answer-timeout=' "$far_uri" answer-timeout=100000
