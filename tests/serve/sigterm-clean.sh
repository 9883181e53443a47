#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# SIGTERM while clients are connected and requests are in flight: the server ends soon,
# all acknowledged data is in the image, and nothing is leaked.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# nbdkit before 1.34 may do this when a client goes with requests in flight, whatever the
# plugin is.
abort='Assertion `sock >= 0. failed'

sample 1 64k 4k 512
for cluster in "${sample[@]}"; do
  img="$tmp/a.qcow2"
  make_image "$img" 16M "cluster_size=$cluster"
  rm -f "$tmp/state"
  for round in 1 2 3; do
    echo "round $round"
    start_nbdkit file="$img"
    model crash "$uri" "$tmp/state" --pid "$nbdkit_pid" --signal TERM --ops 1500 \
      --cluster "$cluster"
    status=0
    wait "$nbdkit_pid" || status=$?
    unset "server_pid[main]"
    clean=--clean
    if [ "$status" -eq 134 ] && grep -q "$abort" "${server_log[main]}"; then
      echo "nbdkit has aborted, as versions before 1.34 do: this was a crash"
      clean=
      qemu-img check -q -f qcow2 -r leaks "$img"
    else
      [ "$status" -eq 0 ]
      check_clean "$img"
    fi
    qemu-img convert -f qcow2 -O raw "$img" "$tmp/after.raw"
    model judge "$tmp/state" "$tmp/after.raw" $clean
  done
done

# A client that is connected and says nothing: nbdkit (1.32 at least) waits for it to
# go, and then all is well too.
make_image "$img" 1M
start_nbdkit file="$img"
hold_connection
nbdsh_run -c 'h.pwrite(b"x", 0)'
kill -TERM "$nbdkit_pid"
drop_connections
status=0
wait "$nbdkit_pid" || status=$?
unset "server_pid[main]"
[ "$status" -eq 0 ]
check_clean "$img"
qemu-io -f qcow2 -r -c 'read -P 0x78 0 1' "$img" > "$tmp/out"
if grep -q 'verification failed' "$tmp/out"; then fail "not written"; fi
