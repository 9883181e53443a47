#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The commands of our systemd units serve on the socket that systemd passes, and on no
# other: one image, with parameters from its environment file, and a directory.  They make
# no socket, which RestrictAddressFamilies=none would not let them do.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/units.sh"
requires_tools
requires strace -D -f -qq -e trace=socket true

images="$tmp/images"
mkdir "$images"
make_image "$images/disk.qcow2" 4M

tracer=(strace -D -f -qq -e signal=none -e "trace=socket,bind,connect" -o "$tmp/sockets")

# write_and_read: a client.
write_and_read ()
{
  nbdsh_run -c 'h.pwrite(b"x" * 70000, 12345)' -c 'h.flush()' \
    -c 'assert h.pread(70000, 12345) == b"x" * 70000'
}

export NBDKIT_OPTIONS="-t 4" QCOW2_PARAMETERS="check=quick l2-cache=1M"
start_unit nbdkit-qcow2@ "$images" disk.qcow2 "${tracer[@]}"
write_and_read
stop_nbdkit unit
grep -q 'qcow2: .*disk.qcow2' "$tmp/unit.log"

export NBDKIT_OPTIONS='' QCOW2_PARAMETERS=''
start_unit nbdkit-qcow2-dir "$images" dir "${tracer[@]}"
uri="nbd+unix:///disk.qcow2?socket=$sock"
write_and_read
stop_nbdkit unit
qemu-img check "$images/disk.qcow2"

[ ! -s "$tmp/sockets" ] || { cat "$tmp/sockets"; fail "made sockets"; }
