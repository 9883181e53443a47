#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Cloud Hypervisor, pull request 7526: L1 entries lack the COPIED flag.
#
# The flag says that a table has no other user.  Without it, each table counted as shared:
# qemu-img check found errors, and writers copied tables for nothing.
#
# https://github.com/cloud-hypervisor/cloud-hypervisor/pull/7526
# Broken: copied-flag-missing

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 8M cluster_size=4k
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"a" * (4 << 20), 0); h.flush(); h.pwrite(b"b" * 512, 7 << 20)'
stop_nbdkit
check_clean "$img"

# A snapshot takes the flags away; what is written then has them again.
qemu-img snapshot -c before "$img"
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"c" * 512, 0); h.trim(1 << 20, 2 << 20)'
stop_nbdkit
check_clean "$img"
qemu-img snapshot -d before "$img"
check_clean "$img"
