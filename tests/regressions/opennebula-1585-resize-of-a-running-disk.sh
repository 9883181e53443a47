#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# OpenNebula, issue 1585: resizing the image of a running machine corrupts it at once.
#
# Its driver changed the size with qemu-img while QEMU had the image open.
#
# https://github.com/OpenNebula/one/issues/1585
# Broken: no-locks

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 16M
start_nbdkit file="$img"
hold_connection
nbdsh_run -c 'h.pwrite(b"x" * 65536, 0); h.flush()'
before="$(virtual_size "$img" 2>/dev/null || :)"
fails_with lock qemu-img resize -f qcow2 "$img" 64M
refused 'lock' file="$img" resize=64M
refused 'lock' file="$img" flatten=true
[ "$(nbdinfo --size "$uri")" -eq $((16 << 20)) ]
drop_connections
stop_nbdkit
check_clean "$img"
[ -z "$before" ] || [ "$before" -eq "$(virtual_size "$img")" ]
