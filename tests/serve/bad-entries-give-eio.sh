#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Invalid table entries: the client gets EIO, the server survives and serves the rest, and
# the image is marked corrupt if it is writable, but not with -r.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# Guest clusters 0, 1, 2 and 8192 (in the second L2 table) are written.
for v in v2 v3; do
  make_image "$tmp/$v.qcow2" 1G compat=$v
  qemu-io -f qcow2 -c 'write -P 1 0 192k' -c 'write -P 2 512M 64k' "$tmp/$v.qcow2"
done

make_image "$tmp/sub.qcow2" 1G extended_l2=on
qemu-io -f qcow2 -c 'write -P 1 0 192k' -c 'write -P 2 512M 64k' "$tmp/sub.qcow2"

# attempt OPERATION GUEST: on the last server; GUEST is a guest offset that a bad entry
# maps.  What hides a bad entry, or leaves it alone, may succeed.
attempt ()
{
  nbdsh_run -c - <<PY
import errno
op, guest = "$1", $2
ops = {
    "read": lambda: h.pread(512, guest),
    "write": lambda: h.pwrite(b"x" * 512, guest),
    "zero": lambda: h.zero(65536, guest),
    "trim": lambda: h.trim(65536, guest),
}
# The other table is a good one.
good = 0 if guest else 512 << 20
assert h.pread(1, good) in (b"\1", b"\2")
try:
    ops[op]()
    assert op in ("zero", "trim"), "no error for " + op
except nbd.Error as e:
    assert e.errnum == errno.EIO, e
# It is no accident.
for i in range(3):
    try:
        h.pread(512, guest)
        assert op in ("zero", "trim"), "no error the second time"
    except nbd.Error as e:
        assert e.errnum == errno.EIO, e
# Map requests too may fail, but not the server.
try:
    h.block_status(1 << 20, guest, lambda *args: 0)
except nbd.Error as e:
    assert e.errnum == errno.EIO, e
assert h.pread(1, good) in (b"\1", b"\2")
PY
  server_lives main
}

# entries VERSIONS OPERATIONS GUEST PATCH...
# OPERATIONS may contain "start": it may as well be refused when the server starts, or
# when somebody comes who may write.
entries ()
{
  local versions="$1" operations="$2" guest="$3" v op before
  shift 3

  for v in $versions; do
    cp "$tmp/$v.qcow2" "$tmp/bad.qcow2"
    header_patch "$tmp/bad.qcow2" "$@"
    cp "$tmp/bad.qcow2" "$tmp/patched.qcow2"

    # Read-only: no byte is changed.
    before=$(fingerprint "$tmp/bad.qcow2")
    if [[ "$operations" = *start* ]] &&
         refused 'bad\.qcow2' -r -- file="$tmp/bad.qcow2"; then
      continue
    fi
    start_nbdkit -r -- file="$tmp/bad.qcow2"
    attempt read "$guest"
    stop_nbdkit
    [ "$before" = "$(fingerprint "$tmp/bad.qcow2")" ]

    for op in $operations; do
      [ "$op" != start ] || continue
      cp "$tmp/patched.qcow2" "$tmp/bad.qcow2"
      start_nbdkit file="$tmp/bad.qcow2"
      if [[ "$operations" = *start* ]] && ! nbdinfo --size "$uri"; then
        server_lives main
        stop_nbdkit
        continue
      fi
      attempt "$op" "$guest"
      stop_nbdkit
      if [ "$v" != v2 ] && [ "$op" = read ]; then
        is_marked_corrupt "$tmp/bad.qcow2"
        # Whoever comes next gets it read-only.
        start_nbdkit file="$tmp/bad.qcow2"
        nbdinfo --is readonly "$uri"
        stop_nbdkit
      fi
    done
  done
}

copied=0x8000000000000000

# L2 entries: misaligned; on the L1, L2 and refcount tables; on a refcount block.
entries "v2 v3" "read write zero trim" 0 l2 Q +512
entries v3 read 65536 l2+8 Q +1024
entries v3 read 0 l2 Q $copied+512
entries "v2 v3" "read write zero trim" 0 l2 Q l1+$copied
entries v3 read 0 l2 Q l2+$copied
entries v3 read 0 l2 Q rt+$copied
entries v3 "read write" 0 l2 Q rb+$copied
entries v3 read $((512 << 20)) l2:1 Q l2+$copied
# Subclusters that are both data and zeros, or data without a host cluster.
entries sub "read write zero trim" 0 l2+8 Q '|0x8000000000000000'
entries sub "read write" $((512 << 20)) l2:2+8 Q '|0x100000000'
entries sub "read write" 0 l2 Q 0
# Version 2 has no zero flag.
entries v2 read 0 l2 Q '|1'
# L1 entries: misaligned, on metadata, beyond the end of the file.
entries "v2 v3" "start read" 0 l1 Q +512
entries v3 "start read" 0 l1 Q l1+$copied
entries v3 "start read" 0 l1 Q rt+$copied
entries v3 "start read write" 0 l1 Q 0x8000000100000000
entries v3 "start read" 0 l1 Q 0x80ffffffffff0000

# Two L1 entries that name the same table: if a write copied it for one of them, the other
# would lose its data.
make_image "$tmp/twice.qcow2" 2G
qemu-io -f qcow2 -c 'write -P 1 0 64k' -c 'write -P 2 512M 64k' "$tmp/twice.qcow2"
header_patch "$tmp/twice.qcow2" l1+16 Q l2+$copied
cp "$tmp/twice.qcow2" "$tmp/patched.qcow2"
for op in 'h.pread(512, at)' 'h.pwrite(b"x" * 512, at)'; do
  for at in 0 1024; do
    cp "$tmp/patched.qcow2" "$tmp/twice.qcow2"
    start_nbdkit file="$tmp/twice.qcow2"
    nbdsh_run -c - <<PY
import errno
at = $at << 20
assert h.pread(1, 512 << 20) == b"\2"
try:
    $op
    assert False, "no error"
except nbd.Error as e:
    assert e.errnum == errno.EIO, e
assert h.pread(1, 512 << 20) == b"\2"
PY
    stop_nbdkit
    is_marked_corrupt "$tmp/twice.qcow2"
  done
done
