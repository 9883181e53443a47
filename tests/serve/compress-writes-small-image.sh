#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# compress=on: nbdcopy, with all its connections, makes an image that is as small as that
# of qemu-img convert -c, has no faults, and reads the same.  Later writes, at random
# offsets or next to compressed data, are correct too.  compress=on is refused where it
# cannot work.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version

# Text, some noise, zeros; neither of them in whole clusters only.
"$python" - "$tmp/disk.raw" <<'PY'
import random, sys
rng = random.Random(5)
words = [rng.randbytes(rng.randint(2, 9)) for _ in range(3000)]
with open(sys.argv[1], "wb") as f:
    for i in range(4):
        f.write(b"".join(rng.choices(words, k=160000)))
        f.write(rng.randbytes(100000 + 4096 * i))
        f.write(bytes(300000))
    f.truncate(f.tell() // 512 * 512)
PY
size=$(file_size "$tmp/disk.raw")

img="$tmp/a.qcow2"
types="zlib"
if "$NBDKIT" "$PLUGIN" --dump-plugin | grep qcow2_zstd=yes > /dev/null; then types="zlib zstd"; fi

# as_small OPTIONS: fills $img.
as_small ()
{
  local want got

  qemu-img convert -q -c -f raw -O qcow2 -o "$1" "$tmp/disk.raw" "$tmp/qemu.qcow2"
  make_image "$img" "$size" "$1"
  start_nbdkit file="$img" compress=on
  # (The request size is that of newer ones anyway.)
  nbdcopy --request-size=2097152 "$tmp/disk.raw" "$uri"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/disk.raw"
  want=$(allocated_kib "$tmp/qemu.qcow2")
  got=$(allocated_kib "$img")
  echo "$1: $got KiB, qemu-img: $want KiB"
  [ "$got" -le $((want + want / 33 + 64)) ] || fail "$1: not as small as qemu-img's"
}

for type in $types; do
  sample 2 512 4k 64k 2M
  for cluster in "${sample[@]}"; do
    for bits in 16 1; do
      if [ "$bits $type" = "1 zstd" ]; then continue; fi
      as_small "cluster_size=$cluster,compression_type=$type,refcount_bits=$bits"
    done
  done
done
as_small compat=v2
as_small lazy_refcounts=on

# Really compressed, and not only sparse.
[ "$(allocated_kib "$img")" -lt $((size * 3 / 4096)) ]
qemu-img check --output=json "$img" | grep -q '"compressed-clusters": [1-9]'

# Clients are told what a whole cluster is, also where there are subclusters.
make_image "$img" 8M cluster_size=512k,extended_l2=on
start_nbdkit file="$img" compress=on
nbdsh_run -c 'assert h.get_block_size(nbd.SIZE_PREFERRED) == 512 << 10'
stop_nbdkit

# Onto what is there, also where that is compressed; over a backing file, too.
sample 1 512 4k 64k
for cluster in "${sample[@]}"; do
  make_image "$img" "$size" "cluster_size=$cluster"
  start_nbdkit file="$img" compress=on
  nbdcopy "$tmp/disk.raw" "$uri"
  cp "$tmp/disk.raw" "$tmp/model.raw"
  model random "$uri" "$tmp/model.raw" --seconds 1 --cluster "$cluster"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
done
qemu-img create -q -f qcow2 -b disk.raw -F raw "$img"
cp "$tmp/disk.raw" "$tmp/model.raw"
start_nbdkit file="$img" compress=on detect-zeroes=unmap
model random "$uri" "$tmp/model.raw" --seconds 1 --max-len 512k
stop_nbdkit
check_clean "$img"
same_as_raw "$img" "$tmp/model.raw"

# Off unless asked for.
make_image "$img" 1M
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"a" * 65536, 0)'
stop_nbdkit
if qemu-img check --output=json "$img" | grep '"compressed-clusters": [1-9]'; then
  fail "compressed without being asked"
fi

# What is encrypted can't be compressed.
qemu-img create -q -f qcow2 --object secret,id=s,data=geheim \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 "$img" 1M
refused 'compress.*encrypted' file="$img" passphrase=geheim compress=on
