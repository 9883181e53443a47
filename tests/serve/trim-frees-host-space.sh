#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Space that is trimmed, or zeroed with permission to punch holes, is given back to the
# host, at the latest by the next flush.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# Can this file system punch holes at all?
truncate -s 1M "$tmp/probe"
dd if=/dev/urandom of="$tmp/probe" bs=64k count=16 status=none
requires fallocate -p -o 0 -l 524288 "$tmp/probe"
sync "$tmp/probe"
[ "$(allocated_kib "$tmp/probe")" -lt 900 ] || skip "no holes on this file system"

random_file "$tmp/full.raw" $((16 << 20))
for compat in v2 v3; do
  for how in trim zero; do
    qemu-img convert -f raw -O qcow2 -o "compat=$compat" "$tmp/full.raw" "$tmp/a.qcow2"
    [ "$(allocated_kib "$tmp/a.qcow2")" -gt 16000 ]
    start_nbdkit file="$tmp/a.qcow2"
    hold_connection
    nbdsh_run -c "h.$how(12 << 20, 2 << 20); h.flush()"
    # While the server goes on.
    [ "$(allocated_kib "$tmp/a.qcow2")" -lt 6000 ]
    # The rest is intact.
    nbdsh_run -c - <<PY
full = open("$tmp/full.raw", "rb").read()
got = h.pread(16 << 20, 0)
assert got[:2 << 20] == full[:2 << 20]
assert got[2 << 20:14 << 20] == bytes(12 << 20)
assert got[14 << 20:] == full[14 << 20:]
PY
    drop_connections
    # Without a flush: when the server ends at the latest.
    nbdsh_run -c "h.$how(1 << 20, 0)"
    stop_nbdkit
    check_clean "$tmp/a.qcow2"
    [ "$(allocated_kib "$tmp/a.qcow2")" -lt 5000 ]
  done
done

# Written again and trimmed again many times: the file does not grow without end.
make_image "$tmp/b.qcow2" 64M
start_nbdkit file="$tmp/b.qcow2"
nbdsh_run -c - <<'PY'
data = b"x" * (8 << 20)
for i in range(40):
    h.pwrite(data, (i % 8) << 23)
    h.flush()
    h.trim(8 << 20, (i % 8) << 23)
    if i % 2:
        h.flush()
PY
stop_nbdkit
check_clean "$tmp/b.qcow2"
[ "$(allocated_kib "$tmp/b.qcow2")" -lt 1000 ]
[ "$(file_size "$tmp/b.qcow2")" -lt $((64 << 20)) ]
