#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With bitmap-durable=true, enabled bitmaps are never marked as in use.  If the server is
# killed, QEMU finds them valid, with all changes; so do we, and both go on with them, even
# if QEMU begins to write only after it has opened the image to read it.  Without the
# parameter, the next crash makes them inconsistent, as ever.  After a clean end they are
# exact, for QEMU and for an image without a crash alike.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version

img="$tmp/a.qcow2"
flags_of ()
{
  qemu-img info -U -f qcow2 --output=json "$img" | "$python" -c '
import json, sys
for b in json.load(sys.stdin)["format-specific"]["data"]["bitmaps"]:
    if b["name"] == sys.argv[1]:
        print(",".join(sorted(b["flags"])))' "$1"
}

# has NAME OFFSET: does QEMU find that piece marked?
has ()
{
  marked "$img" "$1" > "$tmp/marked"
  awk -v at="$2" '$1 <= at && at < $1 + $2 { found = 1 } END { exit !found }' \
    "$tmp/marked"
}

# killed_after COMMAND...: of nbdsh, with parameters of the server in $parameters.
killed_after ()
{
  # shellcheck disable=SC2086
  start_nbdkit file="$img" $parameters
  hold_connection
  nbdsh_run -c "$1"
  kill9_nbdkit main
  drop_connections
  check_leaks_only "$img"
}

sample 2 512 64k 2M 64k,extended_l2=on
for cluster in "${sample[@]}"; do
  rm -f "$img"
  make_image "$img" 96M "cluster_size=$cluster"
  qemu-img bitmap --add -g 4k "$img" fine
  qemu-img bitmap --add -g 2M "$img" coarse
  qemu-io -f qcow2 -c 'write 90M 4k' "$img" > /dev/null

  parameters=bitmap-durable=true
  killed_after 'h.pwrite(b"x" * 5000, 10 << 20); h.zero(4096, 50 << 20)'
  for b in fine coarse; do
    [ "$(flags_of $b)" = auto ]
    for at in 10 50 90; do has $b $((at << 20)); done
  done

  # QEMU goes on: at once, or as the target of a commit.
  qemu-io -f qcow2 -c 'write 20M 4k' "$img" > /dev/null
  qemu-img create -q -f qcow2 -b "$img" -F qcow2 "$tmp/over.qcow2"
  qemu-io -f qcow2 -c 'write 30M 4k' "$tmp/over.qcow2" > /dev/null
  qemu-img commit -q -f qcow2 "$tmp/over.qcow2"
  for at in 10 20 30 50 90; do has fine $((at << 20)); done

  # So do we, with another crash, and a start that only reads.
  killed_after 'h.pwrite(b"y", 40 << 20)'
  start_nbdkit -r -- file="$img"
  stop_nbdkit
  [ "$(flags_of fine)" = auto ]
  for at in 10 20 30 40 50 90; do has fine $((at << 20)); done

  # Exact after a clean end; and with a snapshot and another size.
  qemu-img bitmap --clear "$img" fine
  start_nbdkit file="$img" bitmap-durable=true snapshot-create=s resize=97M
  hold_connection
  nbdsh_run -c 'h.pwrite(b"z", 60 << 20)'
  [ "$(flags_of fine)" = auto ]
  drop_connections
  nbdsh_run -c 'h.pwrite(b"z", (97 << 20) - 1)'
  stop_nbdkit
  check_clean "$img"
  marked "$img" fine > "$tmp/marked"
  printf '%s\n' "$((60 << 20)) 4096" "$(((97 << 20) - 4096)) 4096" |
    diff - "$tmp/marked"

  # Without it, they are worth nothing after a crash.
  parameters=
  killed_after 'h.pwrite(b"y", 40 << 20)'
  [ "$(flags_of fine)" = auto,in-use ]
done
