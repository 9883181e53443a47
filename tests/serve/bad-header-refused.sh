#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Headers that violate a limit of the format are refused when the server starts: with one
# line, without a crash, at once, with -r and without.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/v3.qcow2" 8M
qemu-io -f qcow2 -c 'write -P 1 0 256k' "$tmp/v3.qcow2"
make_image "$tmp/v2.qcow2" 8M compat=v2
qemu-io -f qcow2 -c 'write -P 1 0 256k' "$tmp/v2.qcow2"
qemu-img create -q -u -f qcow2 -b base.raw -F raw "$tmp/backing.qcow2" 8M
cp "$tmp/v3.qcow2" "$tmp/snapshot.qcow2"
qemu-img snapshot -c one "$tmp/snapshot.qcow2"
cp "$tmp/v3.qcow2" "$tmp/bitmap.qcow2"
qemu-img bitmap --add "$tmp/bitmap.qcow2" one
truncate -s 1M "$tmp/base.raw"
for img in v3 v2 backing snapshot bitmap; do
  start_nbdkit -r -- file="$tmp/$img.qcow2"
  nbdinfo --size "$uri"
  stop_nbdkit
done

tried=0 wrong=0

# bad IMAGE PATTERN PATCH...: the message names the file and matches PATTERN.
bad ()
{
  local image="$1" pattern="$2"
  shift 2
  cp "$tmp/$image.qcow2" "$tmp/bad.qcow2"
  header_patch "$tmp/bad.qcow2" "$@"
  tried=$((tried + 1))
  if ! refused "bad\\.qcow2.*($pattern)" file="$tmp/bad.qcow2"; then
    echo "WRONG: $image $*"
    wrong=$((wrong + 1))
  fi
}

# cut IMAGE BYTES PATTERN
cut_to ()
{
  cp "$tmp/$1.qcow2" "$tmp/bad.qcow2"
  truncate -s "$2" "$tmp/bad.qcow2"
  tried=$((tried + 1))
  if ! refused "bad\\.qcow2.*($3)" file="$tmp/bad.qcow2"; then
    echo "WRONG: $1 cut to $2"
    wrong=$((wrong + 1))
  fi
}

set +x
for v in v2 v3; do
  bad $v 'no known format' 0 B 0x52
  bad $v 'version' 4 I 0
  bad $v 'version' 4 I 1
  bad $v 'version' 4 I 4
  bad $v 'cluster_bits' 20 I 8
  bad $v 'cluster_bits' 20 I 22
  bad $v 'cluster_bits' 20 I 0xffffffff
  # Size and L1 table.
  bad $v 'L1' 24 Q 0x200000000000
  bad $v 'L1|size' 24 Q 0x7ffffffffffffe00
  bad $v 'L1|size' 24 Q 0xfffffffffffffe00
  bad $v 'L1' 36 I 0
  bad $v 'L1' 36 I 0x400001
  bad $v 'L1' 36 I 0xffffffff
  bad $v 'L1' 36 I 0x400000
  bad $v 'L1' 40 Q +512
  bad $v 'L1' 40 Q +1
  bad $v 'L1' 40 Q 0
  bad $v 'L1' 40 Q 0x100000000
  bad $v 'L1' 40 Q 0x100000000000000
  bad $v 'L1' 40 Q 0xffffffffffff0000
  # Refcount table.
  bad $v 'refcount' 48 Q 0
  bad $v 'refcount' 48 Q +512
  bad $v 'refcount' 48 Q 0x100000000
  bad $v 'refcount' 48 Q 0x100000000000000
  bad $v 'refcount' 48 Q 0xffffffffffff0000
  bad $v 'refcount' 56 I 0
  bad $v 'refcount' 56 I 129
  bad $v 'refcount' 56 I 0xffffffff
  bad $v 'refcount' 56 I 128
  # Snapshot table.
  bad $v 'snapshot' 60 I 65537 64 Q 0x50000
  bad $v 'snapshot' 60 I 1 64 Q 0x50200
  bad $v 'snapshot' 64 Q 0x50200
  bad $v 'snapshot' 60 I 1 64 Q 0x100000000
  bad $v 'snapshot' 60 I 1 64 Q 0xffffffffffff0000
  # Backing file name.
  bad $v 'backing' 8 Q 65537 16 I 4
  bad $v 'backing' 8 Q 0xffffffffffffffff 16 I 4
  bad $v 'backing' 8 Q 65500 16 I 100
  bad $v 'backing' 8 Q 1024 16 I 1024
  bad $v 'backing' 8 Q 1024 16 I 0xffffffff
  # Encryption.
  bad $v 'passphrase' 32 I 1
  bad $v 'LUKS' 32 I 2
  bad $v 'encrypt' 32 I 3
done

# What only version 3 has.
for bit in 5 31 32 62; do
  bad v3 "bit $bit" 72 Q $((1 << bit))
done
bad v3 'data file' 72 Q 4
bad v3 'compression' 72 Q 8
# Subclusters of less than 512 bytes.
bad v3 'extended|subcluster' 72 Q 16 20 I 13
bad v3 'refcount_order|refcount_bits' 96 I 7
bad v3 'refcount_order|refcount_bits' 96 I 0xffffffff
bad v3 'header_length' 100 I 0
bad v3 'header_length' 100 I 72
bad v3 'header_length' 100 I 103
bad v3 'header_length' 100 I 65537
bad v3 'header_length' 100 I 0xffffffff
bad v3 'compression' 104 B 1
bad v3 'compression' 104 B 2 72 Q 8
bad v3 'compression' 104 B 255

# Extensions: the first one is at 112.
bad v3 'extension' 116 I 0xffffffff
bad v3 'extension' 116 I 65417
bad v3 'extension' 112 I 0x77777777 116 I 0xfffffff8
bad backing 'extension' 116 I 0x1000
bad v3 'extension' 112 I 0 116 I 0xffffff00
bad v3 'extension|encrypt' 112 I 0x0537be77 116 I 16 32 I 2 120 Q 0x50001 128 Q 512
bad v3 'extension|encrypt' 112 I 0x0537be77 116 I 15 32 I 2
# Tables on top of each other.
bad v3 'L1|refcount' 40 Q rt
bad v3 'L1|header' 40 Q 0 48 Q 0

# Bitmaps.
at=$("$python" - "$tmp/bitmap.qcow2" <<'PY'
import sys
print(open(sys.argv[1], "rb").read(65536).index(bytes.fromhex("23852875")))
PY
)
bad bitmap 'bitmap' $((at + 4)) I 23
bad bitmap 'bitmap' $((at + 4)) I 16
bad bitmap 'bitmap' $((at + 8)) I 0
bad bitmap 'bitmap' $((at + 8)) I 65536
bad bitmap 'bitmap' $((at + 12)) I 1
bad bitmap 'bitmap' $((at + 16)) Q 0
bad bitmap 'bitmap' $((at + 16)) Q $((65535 * 1024 + 1))
bad bitmap 'bitmap' $((at + 24)) Q +512

# Snapshot table: one entry, at the place that the header tells.
table=$(( 0x$(od -An -tx1 -j64 -N8 "$tmp/snapshot.qcow2" | tr -d ' \n') ))
bad snapshot 'snapshot' $((table + 36)) I 1025
bad snapshot 'snapshot' $((table + 36)) I 0xffffffff
bad snapshot 'snapshot' 60 I 2000
# Its L1 table.
bad snapshot 'snapshot|L1' "$table" Q +512
bad snapshot 'snapshot|L1' "$table" Q 0x100000000000
bad snapshot 'snapshot|L1' $((table + 8)) I 0xffffffff

# Files that were cut off.
for v in v2 v3; do
  for n in 0 1 3 4 8 71 72 103 104 111 4096 65535; do
    cut_to $v $n 'no known format|end|header|cluster|short|empty'
  done
  # After the header; after the refcount table and block: the L1 table is missing.
  cut_to $v 65536 'end|beyond'
  cut_to $v $((3 * 65536)) 'end|beyond'
done
set -x

echo "$tried bad headers, $wrong of them not refused as they should be"
[ "$wrong" -eq 0 ]

# Nothing of this was worth a crash: and the unharmed image still opens.
start_nbdkit file="$tmp/v3.qcow2"
nbdsh_run -c 'assert h.pread(1, 0) == b"\1"'
stop_nbdkit
check_clean "$tmp/v3.qcow2"
