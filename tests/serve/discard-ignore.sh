#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# discard=ignore: trim succeeds and does nothing, and the file never shrinks.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/data.raw" $((4 << 20))
img="$tmp/a.qcow2"
qemu-img convert -f raw -O qcow2 "$tmp/data.raw" "$img"
before=$(allocated_kib "$img")
start_nbdkit file="$img" discard=ignore
nbdinfo --can trim "$uri"
nbdsh_run -c 'h.trim(4 << 20, 0); h.flush()'
model verify "$uri" "$tmp/data.raw"
# Zeros are zeros, whatever becomes of the space.
nbdsh_run -c 'h.zero(1 << 20, 0); h.flush(); assert h.pread(1 << 20, 0) == bytes(1 << 20)'
stop_nbdkit
check_clean "$img"
[ "$(allocated_kib "$img")" -ge "$before" ]

qemu-img convert -f qcow2 -O raw "$img" "$tmp/model.raw"
start_nbdkit file="$img" discard=ignore
model random "$uri" "$tmp/model.raw" --seconds 2 --trim keep
stop_nbdkit
check_clean "$img"
same_as_raw "$img" "$tmp/model.raw"
