#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Discarding or zeroing a range of which only a part is allocated makes no L2 tables for
# the rest.  (A full file system would have no space for them, and nothing could be
# freed.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# Prints how many L2 tables there are.
tables ()
{
  "$python" - "$1" <<'PY'
import struct, sys
with open(sys.argv[1], "rb") as f:
    n, offset = struct.unpack(">IQ", f.read(48)[36:])
    f.seek(offset)
    print(sum(e != 0 for e in struct.unpack(">%dQ" % n, f.read(8 * n))))
PY
}

# Each with the guest bytes of an L2 table.
for row in v2,cluster_size=512:$((32 << 10)) v3,cluster_size=512:$((32 << 10)) \
  v3,cluster_size=64k:$((512 << 20)) v3,cluster_size=16k,extended_l2=on:$((16 << 20)); do
  IFS=: read -r options span <<< "$row"
  img="$tmp/a.qcow2"
  rm -f "$img"
  make_image "$img" $((span * 40)) "compat=$options"
  start_nbdkit file="$img"
  span="$span" "$python" -m nbd -u "$uri" -c - <<'PY'
import os
span = int(os.environ["span"])
data = b"x" * 65536
for op in (h.trim, h.zero, lambda *a: h.zero(*a, flags=nbd.CMD_FLAG_NO_HOLE)):
    # Two tables, at both ends of the 17th and 20th.
    for offset in (17 * span, 21 * span - 65536 if span > 65536 else 20 * span):
        h.pwrite(data[:min(len(data), span)], offset)
    h.flush()
    op(min(span * 38, (1 << 32) - 65536), span)
    for first in range(span * 15, span * 25, span):
        op(span * 2, first + span // 2)
    h.flush()
    assert h.pread(65536, 17 * span) == bytes(65536)
    assert h.pread(65536, 21 * span - 65536) == bytes(65536)
PY
  stop_nbdkit
  check_clean "$img"
  n=$(tables "$img")
  [ "$n" = 2 ] || fail "$options: $n L2 tables for what lies in 2"
done
