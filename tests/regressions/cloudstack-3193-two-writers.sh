#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# CloudStack, issue 3193: deleting a snapshot of a running disk corrupts the image.
#
# A management program changed an image with its own tool while a server wrote it.  Each
# had its own idea of the refcounts.
#
# https://github.com/apache/cloudstack/issues/3193
# Broken: no-locks

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 16M
qemu-io -f qcow2 -c 'write -P 1 0 1M' "$img" > /dev/null
qemu-img snapshot -c s "$img"

start_nbdkit file="$img"
hold_connection
nbdsh_run -c 'h.pwrite(b"x" * 65536, 0); h.flush()'
fails_with lock qemu-img snapshot -d s "$img"
refused 'lock' file="$img" snapshot-delete=s
drop_connections
stop_nbdkit

# And the other way round.
hold_in_qemu_io -f qcow2 "$img"
echo 'write -P 2 0 64k' >&9
refused 'lock' file="$img" snapshot-delete=s
end_qemu_io
qemu-img snapshot -l "$img" | grep ' s '
check_leaks_only "$img"
