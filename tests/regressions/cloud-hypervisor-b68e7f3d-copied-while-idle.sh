#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Cloud Hypervisor, commit b68e7f3d911c: a copy of a paused machine's disk lacks its last
# writes.
#
# Metadata stayed in memory until the guest flushed, also while the machine was paused to
# be copied.  The copy had the data, and no pointers to them.
#
# An NBD server does not know about pauses.  But when the last client that may write has
# left, the file must be complete, without a flush, while the server is still running.
#
# https://github.com/cloud-hypervisor/cloud-hypervisor/commit/b68e7f3d911c
# Broken: last-client-leaves-nothing-written

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 16M
random_file "$tmp/data.raw" $((2 << 20))
truncate -s 16M "$tmp/data.raw"
start_nbdkit file="$img"
# (No flush.)
nbdcopy "$tmp/data.raw" "$uri"
# A server notices a moment later that a client has left.  (A checkpoint that the timer
# begins before leaves what is reserved for writes to come.)
copied ()
{
  cp "$img" "$tmp/copy.qcow2"
  qemu-img check -q "$tmp/copy.qcow2" > /dev/null 2>&1 &&
    qemu-img compare -q -f qcow2 -F raw "$tmp/copy.qcow2" "$tmp/data.raw"
}
await copied
server_lives main
check_clean "$tmp/copy.qcow2"
same_as_raw "$tmp/copy.qcow2" "$tmp/data.raw"
stop_nbdkit
