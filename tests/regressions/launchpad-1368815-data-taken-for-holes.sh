#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU, Launchpad bug 1368815: a copy has zeros where its source has data.
#
# qemu-img asked the host which parts of a file have data before they had been written to
# the disk, and the file system did not know yet.  OpenStack made damaged snapshots.
#
# https://bugs.launchpad.net/qemu/+bug/1368815
# Broken: unsynced-data-taken-for-holes

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
random_file "$tmp/data.raw" $((4 << 20))
for options in data_file=$tmp/d.raw,data_file_raw=on data_file=$tmp/e.raw compat=v3 \
               preallocation=metadata; do
  rm -f "$img"
  make_image "$img" 8M "$options"
  start_nbdkit file="$img"
  # Written, not flushed, not even because the last client leaves; and copied by asking
  # where data is.
  hold_connection
  nbdcopy "$tmp/data.raw" "$uri"
  nbdcopy "$uri" "$tmp/out.raw"
  cmp -n $((4 << 20)) "$tmp/out.raw" "$tmp/data.raw"
  drop_connections
  stop_nbdkit
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/out.raw"
  cmp -n $((4 << 20)) "$tmp/out.raw" "$tmp/data.raw"
done
