#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With -v, -D qcow2.stats=1 prints counters at the end.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/a.qcow2" 64M
start_nbdkit -v -D qcow2.stats=1 -- file="$tmp/a.qcow2"
nbdsh_run -c 'h.pwrite(b"x" * (1 << 20), 0); h.flush(); h.pread(4096, 0)' \
          -c 'h.trim(1 << 19, 0); h.flush()'
stop_nbdkit
for word in hits misses evictions allocated freed punched checkpoints; do
  grep -qi "$word" "${server_log[main]}" || fail "no $word in the statistics"
done

# Not without.
start_nbdkit file="$tmp/a.qcow2"
nbdsh_run -c 'h.pread(4096, 0)'
stop_nbdkit
if [ -s "${server_log[main]}" ]; then fail "talks without being asked"; fi
