#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# In the background, as nbdkit usually runs, it changes its directory and forks.  Locks,
# open files and relative names must survive this.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

cd "$tmp"
random_file base.raw 65536
make_image a.qcow2 1M "backing_file=base.raw,backing_fmt=raw"
"$NBDKIT" -U "$sockdir/s" -P "$tmp/pid" "$PLUGIN" a.qcow2
# (It is the process in the background that writes it.)
await test -s "$tmp/pid"
pid=$(cat "$tmp/pid")
server_pid[main]="$pid"
uri="nbd+unix:///?socket=$sockdir/s"
hold_connection
nbdsh_run -c 'assert h.pread(65536, 0) == open("base.raw", "rb").read()' \
          -c 'h.pwrite(b"x" * 65536, 65536); h.zero(4096, 0); h.flush()' \
          -c 'h.pwrite(b"y" * 65536, 131072)'
# Locked.
if qemu-img info a.qcow2; then fail "not locked"; fi
drop_connections
kill -TERM "$pid"
await_end "$pid"
unset "server_pid[main]"
check_clean a.qcow2
qemu-io -r -f qcow2 -c 'read -P 0x78 64k 64k' -c 'read -P 0x79 128k 64k' \
  -c 'read -P 0 0 4k' a.qcow2 > out
if grep -q 'verification failed' out; then fail "data lost"; fi

# Under --run, with the image as the magic parameter.
# shellcheck disable=SC2016
"$NBDKIT" -U - --run 'nbdinfo --size "$uri"' "$PLUGIN" a.qcow2 > out
[ "$(cat out)" = 1048576 ]
check_clean a.qcow2
