#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image on a block device can be written until the device is full: clusters that are
# allocated ahead do not cause an early ENOSPC.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires losetup --version

size=$((20 << 20))
truncate -s "$size" "$tmp/disk"
dev="$(losetup --find --show "$tmp/disk")" || skip "no loop device can be had"
# It goes when the last process that has it open ends, however that is.
exec 9<>"$dev"
losetup --detach "$dev"

for cluster in 512 4k 64k; do
  head -c 2M /dev/zero > "$dev"
  qemu-img create -q -f qcow2 -o "cluster_size=$cluster" "$dev" 64M
  start_nbdkit file="$dev"
  nbdsh_run -c - <<'PY'
import errno, random
rng = random.Random(1)
written = {}
for count in (65536, 4096, 512):
    for o in range(0, h.get_size(), 65536):
        if o in written:
            continue
        try:
            data = rng.randbytes(count)
            h.pwrite(data, o)
            written[o] = data
        except nbd.Error as e:
            assert e.errnum == errno.ENOSPC, e
            break
    else:
        raise SystemExit("it did not fill up")
    h.flush()
for o, data in written.items():
    assert h.pread(len(data), o) == data, o
PY
  stop_nbdkit
  check_clean "$dev"
  end="$(qemu-img check --output=json -f qcow2 "$dev" |
         "$python" -c 'import json, sys; print(json.load(sys.stdin)["image-end-offset"])')"
  [ $((size - end)) -le $((128 << 10)) ] ||
    fail "clusters of $cluster: $((size - end)) bytes of the device were not used"
done
