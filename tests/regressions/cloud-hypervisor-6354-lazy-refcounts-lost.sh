#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Cloud Hypervisor, issue 6354: opening an image turns lazy refcounts off.
#
# It wrote a header of its own, without the features that the image had.
#
# https://github.com/cloud-hypervisor/cloud-hypervisor/issues/6354
# Broken: compatible-features-cleared

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 16M lazy_refcounts=on
# And a compatible feature that nobody knows yet.
header_patch "$img" 80 Q '|0x4000000000000000'
head -c 65536 "$img" > "$tmp/header"
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"x" * 65536, 1 << 20); h.flush(); h.trim(65536, 1 << 20)'
stop_nbdkit
cmp -n 65536 "$img" "$tmp/header"
qemu-img info -f qcow2 "$img" | grep 'lazy refcounts: true'
check_clean "$img"
