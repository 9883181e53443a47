#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Images with compressed clusters are read and overwritten: the data is what qemu-img
# compressed, and exactly the overwritten clusters are freed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# Half of it packs well, a quarter not at all, and there are zeros.
"$python" - "$tmp/disk.raw" <<'PY'
import random, sys
rng = random.Random(1)
with open(sys.argv[1], "wb") as f:
    for i in range(64):
        f.write(rng.randbytes(65536) if i % 4 == 0 else
                bytes(65536) if i % 4 == 1 else
                b"%07d\n" % i * 8192)
    f.write(b"tail" * 128)
PY

types="zlib"
if nbdkit "$PLUGIN" --dump-plugin | grep qcow2_zstd=yes > /dev/null; then types="zlib zstd"; fi

img="$tmp/a.qcow2"
for type in $types; do
  sample 2 512 4k 64k 2M
  for cluster in "${sample[@]}"; do
    qemu-img convert -q -c -f raw -O qcow2 \
      -o "cluster_size=$cluster,compression_type=$type" "$tmp/disk.raw" "$img"

    start_nbdkit_as main -r -- file="$img"
    nbdcopy "$uri" "$tmp/out.raw"
    cmp "$tmp/disk.raw" "$tmp/out.raw"
    # Small and odd pieces.
    nbdsh_run -c - <<PY
data = open("$tmp/disk.raw", "rb").read()
for o in range(0, len(data), 100003):
    n = min(12345, len(data) - o)
    assert h.pread(n, o) == data[o:o + n], o
PY
    stop_nbdkit

    cp "$tmp/disk.raw" "$tmp/model.raw"
    start_nbdkit file="$img"
    model random "$uri" "$tmp/model.raw" --seconds 1 --cluster "$cluster"
    stop_nbdkit
    check_clean "$img"
    same_as_raw "$img" "$tmp/model.raw"
    echo "ok: $type, clusters of $cluster"
  done
done

# Compressed clusters below: a v2 base, and an overlay with smaller clusters.
qemu-img convert -q -c -f raw -O qcow2 -o compat=v2 "$tmp/disk.raw" "$tmp/base.qcow2"
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 -o cluster_size=4k "$img"
cp "$tmp/disk.raw" "$tmp/model.raw"
start_nbdkit file="$img"
model random "$uri" "$tmp/model.raw" --seconds 1 --cluster 4k
stop_nbdkit
check_clean "$img"
same_as_raw "$img" "$tmp/model.raw"

# Garbage in place of a compressed cluster: EIO there, and the image stays writable.
qemu-img convert -q -c -f raw -O qcow2 "$tmp/disk.raw" "$img"
"$python" - "$img" <<'PY'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    head = f.read(104)
    l1, = struct.unpack(">Q", head[40:48])
    f.seek(l1)
    l2 = struct.unpack(">Q", f.read(8))[0] & 0x00fffffffffffe00
    f.seek(l2 + 2 * 8)
    entry, = struct.unpack(">Q", f.read(8))
    assert entry >> 62 & 1
    f.seek(entry & ((1 << 54) - 1))
    f.write(b"\xff" * 64)
PY
start_nbdkit file="$img"
nbdsh_run -c - <<'PY'
try:
    h.pread(512, 2 * 65536)
    raise SystemExit("garbage was served")
except nbd.Error as e:
    assert e.errno == "EIO", e
h.pread(512, 3 * 65536)
h.pwrite(b"n" * 65536, 2 * 65536)
assert h.pread(512, 2 * 65536) == b"n" * 512
PY
stop_nbdkit
check_clean "$img"
if is_marked_corrupt "$img"; then fail "marked corrupt"; fi
