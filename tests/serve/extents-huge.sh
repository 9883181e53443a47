#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Block status of nearly 4 GiB at once, of a huge sparse disk: nbdkit before 1.42.4
# crashes if the extents of a plugin extend beyond the request.  (nbdkit 1.48 answers for
# at most 4 GiB - 64 KiB.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

for compat in v2 v3; do
  make_image "$tmp/a.qcow2" 4T compat=$compat
  start_nbdkit file="$tmp/a.qcow2"
  nbdsh_run -c - <<'PY'
most = (1 << 32) - 1
size = h.get_size()
def ask(count, offset, flags=0):
    got = []
    h.block_status(count, offset, lambda c, o, e, err: got.extend(e), flags)
    assert got
    return got
for flags in (0, nbd.CMD_FLAG_REQ_ONE):
    for offset in (0, 1, 511, 65536, 12345678901, size - most, size - most - 1,
                   1 << 40):
        for count in (most, most - 511, 1 << 31, 1):
            got = ask(count, offset, flags)
            if flags == 0:
                assert sum(got[::2]) >= min(count, (1 << 32) - 65536), (got, offset, count)
            assert all(t == 3 for t in got[1::2]), got
h.pwrite(b"x" * 1000, (1 << 40) + 100)
h.pwrite(b"y" * 1000, size - 1000)
got = ask(most, 1 << 40)
assert got[:2] == [65536, 0] and got[3] == 3, got
got = ask(most, (1 << 40) - 5)
assert got[:4] == [5, 3, 65536, 0], got
got = ask(1000, size - 1000)
assert got[1] == 0, got
got = ask(most, size - most)
assert got[-1] == 0 and got[1] == 3
assert h.pread(10, 1 << 41) == bytes(10)
PY
  server_lives main
  stop_nbdkit
  check_clean "$tmp/a.qcow2"
done
