#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Large zero requests: nbdkit before 1.45.1 writes to the wrong place if a plugin leaves
# them to nbdkit's fallback.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/base.raw" $((1 << 20))
for row in v3: v2: v3:backing_file=base.raw,backing_fmt=raw \
           v2:backing_file=base.raw,backing_fmt=raw; do
  IFS=: read -r compat more <<< "$row"
  make_image "$tmp/a.qcow2" 400M "compat=$compat${more:+,$more}"
  start_nbdkit file="$tmp/a.qcow2"
  nbdsh_run -c - <<'PY'
mib = 1 << 20
marks = list(range(0, 400, 8))
def mark():
    for m in marks:
        h.pwrite(b"%03d" % m * 1000, m * mib + 70000)
def check(start, end):
    for m in marks:
        o = m * mib + 70000
        got = h.pread(3000, o)
        expected = bytearray(b"%03d" % m * 1000)
        for i in range(3000):
            if start <= o + i < end:
                expected[i] = 0
        assert got == expected, (m, start, end)
    # Over the base's own bytes.
    if start == 0:
        assert h.pread(mib, 0) == bytes(mib)
for flags in (0, nbd.CMD_FLAG_NO_HOLE):
    for start, count in ((0, 128 * mib), (128 * mib, 128 * mib),
                         (64 * mib + 1, 128 * mib), (0, 400 * mib),
                         (33 * mib + 70001, 200 * mib + 1)):
        mark()
        h.zero(count, start, flags)
        check(start, start + count)
PY
  stop_nbdkit
  check_clean "$tmp/a.qcow2"
done
