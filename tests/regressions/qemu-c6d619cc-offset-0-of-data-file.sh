#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU, commit c6d619cc1281: offset 0 of an external data file is taken for no offset.
#
# In the image itself nothing but the header is at offset 0, so 0 meant an error, or "not
# determined yet".  In an external data file the first cluster of the disk is there.
#
# https://repo.jachan.dev/qemu.git/commit/c6d619cc12813acb2b1198f28cf2256ea9a30107
# Broken: offset-0-of-data-file-invalid

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2" data="$tmp/a.data"
for options in data_file_raw=off data_file_raw=on data_file_raw=off,extended_l2=on; do
  rm -f "$img" "$data"
  make_image "$img" 1M "data_file=$data,$options"
  # First by QEMU, then in part, in whole and beside it, by the plugin, and again by QEMU.
  io "$img" 'write -P 0x61 0 64k'
  start_nbdkit file="$img"
  nbdsh_run -c - <<'PY'
want = bytearray(b"a" * 65536 + bytes(65536))
def check():
    assert h.pread(len(want), 0) == want, "the first clusters show something else"
def write(buf, offset):
    h.pwrite(buf, offset)
    want[offset:offset + len(buf)] = buf
    check()
check()
write(b"b" * 512, 1024)
write(b"c" * 4096, 65536 - 2048)
write(b"d" * 65536, 0)
h.trim(65536, 0)
want[:65536] = bytes(65536)
check()
h.zero(65536, 0)
check()
write(b"e" * 512, 0)
h.flush()
PY
  stop_nbdkit
  check_clean "$img"
  cmp -n 512 "$data" <(head -c 512 /dev/zero | tr '\0' e)
  qemu-io -r -f qcow2 -c 'read -P 0x65 0 512' -c 'read -P 0 512 65024' \
    -c 'read -P 0x63 64k 2k' "$img"
  io "$img" 'write -P 0x66 0 128k'
  start_nbdkit file="$img"
  nbdsh_run -c 'assert h.pread(131072, 0) == b"f" * 131072'
  stop_nbdkit
  check_clean "$img"
done
