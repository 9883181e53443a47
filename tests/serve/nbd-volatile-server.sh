#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The NBD server with the image loses everything that was not flushed when it is killed,
# except some blocks, in any order: the image is intact, and everything that clients have
# flushed is there.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/engines.sh"
requires_tools

parts=(far)
far_uri="nbd+unix:///?socket=$sockdir/far.sock"
truncate -s 32M "$tmp/far"

start_engine ()
{
  rm -f "$sockdir/far.sock"
  start_daemon far "$python" "$srcdir/lib/remoteserver.py" "$sockdir/far.sock" \
    "$tmp/far" --seed "$RANDOM" "$how_far"
  await_daemon far test -S "$sockdir/far.sock"
}

for how_far in --multi-conn --delay=0.002; do
  engine_ops=600
  start_engine
  fill_engine
  for round in 1 2; do
    echo "round $round"
    crash_round far
  done
  clean_round
  kill_part far
done
