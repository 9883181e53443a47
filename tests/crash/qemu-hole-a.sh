#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A freed cluster must not be reused before the pointer to it is gone from the disk.
# Otherwise a crash shows data of another guest offset where zeros were written.
# (qemu-nbd 7.2 fails this test.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"

# must_be GUEST COUNT LETTERS IMAGE: all bytes there are the same, one of LETTERS (0 is zero).
must_be ()
{
  qemu-img convert -f qcow2 -O raw "$4" "$tmp/judged.raw"
  "$python" - "$tmp/judged.raw" "$1" "$2" "$3" <<'PY'
import sys
name, offset, count, letters = sys.argv[1:]
with open(name, "rb") as f:
    f.seek(int(offset))
    got = f.read(int(count))
allowed = {0 if c == "0" else ord(c) for c in letters}
# Sector by sector: a write may be cut off between two of them.
for i in range(0, len(got), 512):
    sector = got[i:i + 512]
    if len(set(sector)) != 1 or sector[0] not in allowed:
        sys.exit("guest offset %d holds %r, expected one of %s" %
                 (int(offset) + i, sector[:8], letters))
PY
}

# --- at any moment, with hardly any cache, so that mappings must be written early

round_trip ()
{
  local cluster="$1" cache="$2" i

  make_image "$img" 16M "cluster_size=$cluster"
  qemu-io -f qcow2 -c 'write -P 0x4f 0 4M' "$img" > /dev/null
  for ((i = 0; i < 4; ++i)); do
    start_nbdkit file="$img" l2-cache="$cache" l2-slice=512
    # Acknowledged: zeroed. Then a lot is written, and never flushed.
    nbdsh_run -c "
import os
h.zero(4 << 20, 0)
for j in range(8 + 3 * $i):
    h.pwrite(b'N' * (1 << 19), (4 << 20) + (j << 19))
os.kill($nbdkit_pid, 9)
"
    wait "$nbdkit_pid" || :
    unset "server_pid[main]"
    check_leaks_only "$img"
    must_be 0 4194304 O0 "$img"
    must_be 4194304 12582912 N0 "$img"
    start_nbdkit file="$img"
    nbdsh_run -c 'h.pwrite(b"O" * (4 << 20), 0); h.flush(); h.zero(12 << 20, 4 << 20); h.flush()'
    stop_nbdkit
  done
}
round_trip 4k 4K
round_trip 64k 0

# --- at every write that the server does

make_image "$img" 16M
qemu-io -f qcow2 -c 'write -P 0x4f 0 1M' "$img"        # O: old, durable

judge ()
{
  must_be 0 1048576 O0 "$1"
  must_be 1048576 1048576 N0 "$1"
}
for how in 'h.zero(1 << 20, 0)' 'h.trim(1 << 20, 0)'; do
  # Acknowledged, not flushed; then elsewhere, where clusters are needed.
  killed_at_every_write "$img" judge "
$how
for i in range(6):
    h.pwrite(b'N' * 65536, (1 << 20) + (i << 16))
h.flush()
"
done
