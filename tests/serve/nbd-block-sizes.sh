#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The NBD server with the image allows only requests of certain sizes and alignments, and
# answers late: none violates them.  With a smallest block of more than 4096 bytes the
# image is read-only.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/engines.sh"
requires_tools

parts=(far)
far_uri="nbd+unix:///?socket=$sockdir/far.sock"
engine_ops=150
truncate -s 32M "$tmp/far"

start_engine ()
{
  rm -f "$sockdir/far.sock"
  start_daemon far "$python" "$srcdir/lib/remoteserver.py" "$sockdir/far.sock" \
    "$tmp/far" --minimum "$minimum" --maximum "$maximum" --delay 0.001
  await_daemon far test -S "$sockdir/far.sock"
}

for row in 1:4096 1:5000 512:1536 512:33554432 4096:4096 4096:12288; do
  minimum=${row%:*} maximum=${row#*:}
  make_image "$tmp/far" 8M
  truncate -s 32M "$tmp/far"
  rm -f "$tmp/model.raw"
  start_engine
  start_nbdkit "$far_uri" lock=false
  model random "$uri" "$tmp/model.raw" --ops "$engine_ops"
  stop_nbdkit
  kill_part far
  check_clean "$tmp/far"
  same_as_raw "$tmp/far" "$tmp/model.raw"
done

for minimum in 8192 65536; do
  maximum=$((3 * minimum))
  start_engine
  start_nbdkit "$far_uri" lock=false
  nbdsh_run -c 'assert h.is_read_only()'
  nbdcopy "$uri" "$tmp/copy.raw"
  cmp "$tmp/copy.raw" "$tmp/model.raw"
  stop_nbdkit
  grep "served read-only: .*smallest block" "$tmp/main.log"
  kill_part far
done
if grep 'is not allowed' "$tmp/far.log"; then fail "a request violates the sizes"; fi
