#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Discarding or zeroing empty clusters changes nothing in the image file, and is quick
# however many clusters there are.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

for row in v2:512:1G v3:512:1G v2:64k:100G v3:64k:100G v3:2M:100G \
  v3,extended_l2=on:16k:1G v3,extended_l2=on:2M:100G; do
  IFS=: read -r compat cluster size <<< "$row"
  img="$tmp/a.qcow2"
  rm -f "$img"
  make_image "$img" "$size" "compat=$compat,cluster_size=$cluster"
  cp --sparse=always "$img" "$tmp/before.qcow2"
  NBDKIT_WRAPPER="${soon[*]}" start_nbdkit file="$img"
  nbdsh_run -c - <<'PY'
size = h.get_size()
step = 1 << 30
for op in (h.trim, h.zero):
    for offset in range(0, size, step):
        op(min(step, size - offset), offset)
    # Nothing aligned.
    op(100000, 12345)
    op(min(size - 1, (1 << 32) - 1 - 512), 1)
    h.flush()
h.zero(100 << 20, 77, nbd.CMD_FLAG_NO_HOLE)
h.zero(100 << 20, 0, nbd.CMD_FLAG_FAST_ZERO)
h.flush()
assert h.pread(1 << 20, 0) == bytes(1 << 20)
PY
  stop_nbdkit
  check_clean "$img"
  [ "$(file_size "$img")" = "$(file_size "$tmp/before.qcow2")" ]
  cmp "$img" "$tmp/before.qcow2"
done
