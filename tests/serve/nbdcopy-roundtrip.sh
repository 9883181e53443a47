#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdcopy in and out: a disk with data, holes and zeros has the same contents afterwards,
# and the holes use no space.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version

# 100 MiB with some islands.
truncate -s 100M "$tmp/in.raw"
"$python" - "$tmp/in.raw" <<'PY'
import random, sys
rng = random.Random(3)
with open(sys.argv[1], "r+b") as f:
    for i in range(60):
        f.seek(rng.randrange(100 << 20) if i else 0)
        f.write(rng.randbytes(rng.randint(1, 300000)))
    f.truncate(100 << 20)
PY
for options in compat=v3 compat=v2 cluster_size=4k cluster_size=2M; do
  make_image "$tmp/a.qcow2" 100M "$options"
  start_nbdkit file="$tmp/a.qcow2"
  nbdcopy "$tmp/in.raw" "$uri"
  nbdcopy "$uri" "$tmp/out.raw"
  cmp "$tmp/in.raw" "$tmp/out.raw"
  # Over what is there, without knowing that it is zero.
  nbdcopy --allocated "$tmp/in.raw" "$uri"
  nbdcopy --flush "$tmp/in.raw" "$uri"
  stop_nbdkit
  check_clean "$tmp/a.qcow2"
  same_as_raw "$tmp/a.qcow2" "$tmp/in.raw"
  rm -f "$tmp/out.raw"
done

# From one of our servers to another.
make_image "$tmp/b.qcow2" 100M
start_nbdkit_as a -r -- file="$tmp/a.qcow2"
from="$uri"
start_nbdkit_as b file="$tmp/b.qcow2"
nbdcopy "$from" "$uri"
stop_nbdkit a
stop_nbdkit b
check_clean "$tmp/b.qcow2"
same_as_raw "$tmp/b.qcow2" "$tmp/in.raw"
[ "$(allocated_kib "$tmp/b.qcow2")" -lt 20000 ]
