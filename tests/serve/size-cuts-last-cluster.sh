#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Disks whose size is not a multiple of the cluster size: only a part of the last cluster
# belongs to the disk.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/odd.qcow2"
for size in 512 1024 65024 66048 198144; do
  for compat in v2 v3; do
    make_image "$img" "$size" "compat=$compat"
    start_nbdkit file="$img"
    [ "$(nbdinfo --size "$uri")" = "$size" ]
    nbdsh_run -c - <<'PY'
size = h.get_size()
def last(n):
    return bytes(h.pread(n, size - n))
def check_end():
    assert last(512) == b"A" * 512, last(512)
h.pwrite(b"B" * size, 0)
assert h.pread(size, 0) == b"B" * size
h.pwrite(b"A" * 512, size - 512)
check_end()
# One byte past the end is refused, by the server too.
h.set_strict_mode(h.get_strict_mode() & ~nbd.STRICT_BOUNDS)
for f in (lambda: h.pread(2, size - 1),
          lambda: h.pwrite(b"xy", size - 1),
          lambda: h.zero(2, size - 1),
          lambda: h.trim(2, size - 1)):
    try:
        f()
        raise SystemExit("a request beyond the end was accepted")
    except nbd.Error:
        pass
check_end()
# The last byte.
h.pwrite(b"Z", size - 1)
assert last(2) == b"AZ"
h.zero(1, size - 1)
assert last(2) == b"A\0"
# All, to the very end.
h.zero(size, 0)
assert h.pread(size, 0) == bytes(size)
h.pwrite(b"C" * size, 0)
h.zero(size, 0, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(size, 0) == bytes(size)
h.pwrite(b"D" * size, 0)
h.flush()
h.trim(size, 0)
got = h.pread(size, 0)
whole = size - size % 65536
assert got[:whole] == bytes(whole)
assert got[whole:] in (bytes(size - whole), b"D" * (size - whole))
h.flush()
extents = []
h.block_status(size, 0, lambda c, o, e, err: extents.extend(e[::2]))
assert sum(extents) == size, extents
PY
    stop_nbdkit
    check_clean "$img"

    qemu-img convert -f qcow2 -O raw "$img" "$tmp/model.raw"
    start_nbdkit file="$img"
    model random "$uri" "$tmp/model.raw" --ops 300
    stop_nbdkit
    check_clean "$img"
    same_as_raw "$img" "$tmp/model.raw"
  done
done

# A disk without any bytes.
make_image "$img" 0
start_nbdkit file="$img"
[ "$(nbdinfo --size "$uri")" = 0 ]
nbdsh_run -c 'h.flush()'
stop_nbdkit
check_clean "$img"
