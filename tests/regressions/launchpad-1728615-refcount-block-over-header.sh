#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU, Launchpad bug 1728615: a new refcount block is put at offset 0.
#
# If the refcount of the header's cluster is 0, that cluster seems to be free.  QEMU then
# wanted to use it for a refcount block, and crashed; other programs overwrite the header.
#
# https://qemu.googlesource.com/qemu/+/6bf45d59f98c898b7d7997a333765c8ee41236ea
# Broken: header-may-be-free

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 1M
qemu-io -f qcow2 -c 'write -P 1 0 128k' "$img" > /dev/null
header_patch "$img" rb H 0
head -c 65536 "$img" > "$tmp/header"
for way in first-client second-client; do
  echo "$way"
  start_nbdkit file="$img"
  nbdsh_run -c 'h.pwrite(b"x" * 65536, 262144)' -c 'h.flush()' || :
  nbdsh_run -c 'assert h.pread(131072, 0) == b"\1" * 131072'
  stop_nbdkit
  cmp -n 72 "$img" "$tmp/header"
  cmp -i 80 -n 65456 "$img" "$tmp/header"
done
start_nbdkit file="$img" untrusted=true
nbdsh_run -c 'assert h.pread(131072, 0) == b"\1" * 131072'
stop_nbdkit
