#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A request that is given up because its client has vanished is no error of the disk: neither
# the counters of stats= nor the log have one.  (serve/on-enospc-wait.sh has one that waits for
# space.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# The server stands still for the two seconds that a request has without its client.  (That
# is killed when the request has begun: nbdkit refuses one that has not.)
start_nbdkit -v -- file="$tmp/a.qcow2" create=4G cluster-size=512 preallocation=metadata \
  stats="$tmp/stats.json" log="$tmp/log"
"$python" -c "
import nbd, os, signal
h = nbd.NBD()
h.connect_uri('$uri')
h.aio_trim((4 << 30) - 512, 0)
while 'trim count=' not in open('${server_log[main]}').read():
    h.poll(0)
os.kill(os.getpid(), signal.SIGKILL)" || :
await grep -q 'aborting sleep' "${server_log[main]}"
kill -STOP "$nbdkit_pid"
sleep 2.1
kill -CONT "$nbdkit_pid"
await grep -q disconnect "$tmp/log"
cat "$tmp/log"
grep -E 'disconnect .* errors=0 ' "$tmp/log"
if grep request-failed "$tmp/log"; then fail "the log blames the disk"; fi
stop_nbdkit
"$python" -c "
import json
image, = json.load(open('$tmp/stats.json'))['images']
trim = image['exports'][0]['trim']
print(trim)
assert trim['errors'] == trim['running'] == 0"
