#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Cloud Hypervisor, commit 53ee9ebb7769: the dirty bit goes when the first of several
# users of an image goes.
#
# A crash after that left refcounts that were out of date, in an image that said that it
# had been closed properly.
#
# https://github.com/cloud-hypervisor/cloud-hypervisor/commit/53ee9ebb7769
# Broken: every-client-ends-changes

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 16M lazy_refcounts=on
start_nbdkit file="$img"
hold_connection
nbdsh_run -c 'h.pwrite(b"x" * 65536, 0); h.flush()'
is_dirty "$img"
nbdsh_run -c 'h.pwrite(b"y" * 65536, 1 << 20)'
# Two clients have come and gone; one is still there.
is_dirty "$img"
kill9_nbdkit main
is_dirty "$img"
drop_connections
# And it is repaired.
start_nbdkit file="$img"
nbdsh_run -c 'assert h.pread(65536, 0) == b"x" * 65536; h.pwrite(b"z", 2 << 20)'
stop_nbdkit
check_clean "$img"
