#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# detect-zeroes: how writes that contain only zeros are stored.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
# Clusters with a host cluster in the first MiB, as QEMU sees it.
host_clusters ()
{
  qemu-img map -f qcow2 --output=json "$img" | "$python" -c '
import json, sys
print(sum(min(e["start"] + e["length"], 1 << 20) - e["start"]
          for e in json.load(sys.stdin)
          if e["start"] < 1 << 20 and "offset" in e) >> 16)'
}

# write_zeros MODE: the first half of 1 MiB of data is overwritten with zeros, and an
# empty MiB gets zeros too, in writes of several alignments.
write_zeros ()
{
  rm -f "$img"
  make_image "$img" 4M
  start_nbdkit file="$img" detect-zeroes="$1"
  nbdsh_run -c - <<'PY'
h.pwrite(b"d" * (1 << 20), 0)
h.flush()
for i in range(8):
    h.pwrite(bytes(65536), i << 16)
h.pwrite(bytes(1 << 20), 1 << 20)
h.pwrite(bytes(100000), (2 << 20) + 12345)
# Not all zeros.
h.pwrite(bytes(65535) + b"e", 3 << 20)
h.flush()
got = h.pread(4 << 20, 0)
assert got == bytes(1 << 19) + b"d" * (1 << 19) + bytes(2 << 20) + bytes(65535) + \
    b"e" + bytes((1 << 20) - 65536)
PY
  stop_nbdkit
  check_clean "$img"
  clusters=$(host_clusters)
  size=$(file_size "$img")
}

write_zeros off
[ "$clusters" -eq 16 ]
full_size=$size
write_zeros on
# Nothing is allocated for zeros where there was nothing.
[ "$size" -lt $((full_size - (1 << 20))) ]
write_zeros unmap
[ "$clusters" -eq 8 ]
[ "$size" -lt $((full_size - (1 << 20))) ]

for mode in on unmap; do
  rm -f "$tmp/model.raw"
  make_image "$img" 4M
  start_nbdkit file="$img" detect-zeroes=$mode
  model random "$uri" "$tmp/model.raw" --seconds 1.5
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
done
