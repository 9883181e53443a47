#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image on top of another one that is on a device with a name of its own, as a logical volume
# has: the old image names that, and not the device's number, which may be that of another one
# after the next start.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires losetup --version

# device FILE NAME: NAME is a link to a device.
device ()
{
  local dev
  dev="$(losetup --find --show "$1")" || skip "no loop device can be had"
  # It goes when the last process that has it open ends.
  # shellcheck disable=SC2034
  exec {fd}< "$dev"
  losetup --detach "$dev"
  ln -sfn "$dev" "$2"
}

base="$tmp/base.qcow2" new="$tmp/new"
make_image "$base" 8M
truncate -s 16M "$tmp/file"
device "$tmp/file" "$new"
qemu-img create -q -f qcow2 -b "$base" -F qcow2 "$new"
start_nbdkit control="$sockdir/qmp" "$base"
PYTHONPATH="$srcdir/lib" "$python" -c 'import sys
from qmp import Client
Client(sys.argv[1]).get("blockdev-snapshot-sync", device="disk", snapshot_file=sys.argv[2],
                        mode="existing")' "$sockdir/qmp" "$new"
nbdsh_run -c 'h.pwrite(b"2" * 65536, 0, nbd.CMD_FLAG_FUA)'
stop_nbdkit
for again in no yes; do
  if [ $again = yes ]; then
    mv "$tmp/file" "$tmp/moved"
    cp "$tmp/moved" "$tmp/file"
    # (The other number has no image.)
    dd if=/dev/zero of="$new" bs=64k count=1 conv=notrunc status=none
    device "$tmp/file" "$new"
  fi
  start_nbdkit "$base"
  refused_connection "base.qcow2: is not written: .* in $new,"
  stop_nbdkit
done
