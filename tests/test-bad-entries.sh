#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Table entries that are wrong: the client gets EIO, the server lives on and serves the
# rest, and the image is marked corrupt if it is being written, but not with -r.

. "${srcdir:-$(dirname "$0")}/functions.sh"
requires_tools

# Guest clusters 0, 1, 2 and 8192 (in the second L2 table) are written.
for v in v2 v3; do
  make_image "$tmp/$v.qcow2" 1G compat=$v
  qemu-io -f qcow2 -c 'write -P 1 0 192k' -c 'write -P 2 512M 64k' "$tmp/$v.qcow2"
done

# entries KIND GUEST PATCH...: guest offset GUEST can't be read any more after this.
#   KIND corrupt: EIO, the corrupt bit is set.  KIND eio: EIO at least.
#   KIND start: may as well be refused at the start.
# A byte at another place must still be readable.
entries ()
{
  local kind="$1" guest="$2" mode good
  shift 2
  for v in v2 v3; do
    for mode in -r --filter=nofilter; do
      for op in read write zero trim; do
        [ $mode != -r ] || [ $op = read ] || continue
        cp "$tmp/$v.qcow2" "$tmp/bad.qcow2"
        header_patch "$tmp/bad.qcow2" "$@"
        before=$(fingerprint "$tmp/bad.qcow2")
        if [ "$kind" = start ]; then
          if refused 'bad\.qcow2' $mode -- file="$tmp/bad.qcow2"; then continue; fi
        fi
        # The good one is in the other table.
        good=$((512 << 20))
        [ "$guest" -lt $good ] || good=0
        start_nbdkit $mode -- file="$tmp/bad.qcow2"
        if [ "$kind" = start ] && ! nbdinfo --size "$uri"; then
          # Or when somebody comes who may write.
          [ $mode != -r ]
          server_lives main
          stop_nbdkit
          continue
        fi
        nbdsh_run -c - <<PY
import errno
ops = {
    "read": lambda: h.pread(512, $guest),
    "write": lambda: h.pwrite(b"x" * 512, $guest),
    "zero": lambda: h.zero(65536, $guest),
    "trim": lambda: h.trim(65536, $guest),
}
assert h.pread(1, $good) in (b"\1", b"\2")
try:
    ops["$op"]()
    # What hides a bad entry, or leaves it alone, may succeed.
    assert "$op" in ("zero", "trim"), "no error for $op"
except nbd.Error as e:
    assert e.errnum == errno.EIO, e
# It is no accident.
for i in range(3):
    try:
        h.pread(512, $guest)
        assert "$op" in ("zero", "trim"), "no error the second time"
    except nbd.Error as e:
        assert e.errnum == errno.EIO, e
# Map requests too may fail, but not the server.
try:
    h.block_status(1 << 20, $guest & ~0xffff, lambda *args: 0)
except nbd.Error as e:
    assert e.errnum == errno.EIO, e
assert h.pread(1, $good) in (b"\1", b"\2")
PY
        server_lives main
        stop_nbdkit
        if [ $mode = -r ]; then
          [ "$before" = "$(fingerprint "$tmp/bad.qcow2")" ]
        elif [ $v = v3 ] && [ "$kind" = corrupt ] && [ $op = read ]; then
          is_marked_corrupt "$tmp/bad.qcow2"
          # Whoever comes next gets it read-only.
          start_nbdkit file="$tmp/bad.qcow2"
          nbdinfo --is readonly "$uri"
          stop_nbdkit
        fi
      done
    done
  done
}

mib512=$((512 << 20))

# L2 entries: misaligned; on the header's cluster; on the L1, L2 and refcount tables;
# on the refcount block.
entries corrupt 0 l2 Q +512
entries corrupt 65536 l2+8 Q +1024
entries corrupt 0 l2 Q 0x8000000000000200
entries corrupt 0 l2 Q 'l1+0x8000000000000000'
entries corrupt 0 l2 Q 'l2+0x8000000000000000'
entries corrupt 0 l2 Q 'rt+0x8000000000000000'
entries corrupt 0 l2 Q 'rb+0x8000000000000000'
entries corrupt $mib512 l2:1 Q 'l2+0x8000000000000000'
# Version 2 has no zero flag.
cp "$tmp/v2.qcow2" "$tmp/saved.qcow2"
cp "$tmp/v2.qcow2" "$tmp/v3.qcow2"
entries eio 0 l2 Q '|1'
# L1 entries: misaligned, on metadata, beyond the end of the file.
make_image "$tmp/v3.qcow2" 1G
qemu-io -f qcow2 -c 'write -P 1 0 192k' -c 'write -P 2 512M 64k' "$tmp/v3.qcow2"
entries start 0 l1 Q +512
entries start 0 l1 Q 'l1+0x8000000000000000'
entries start 0 l1 Q 'rt+0x8000000000000000'
entries start 0 l1 Q 'rb+0x8000000000000000'
entries start 0 l1 Q 0x8000000100000000
entries start 0 l1 Q 0x80ffffffffff0000
