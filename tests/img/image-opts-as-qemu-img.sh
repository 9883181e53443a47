#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# --image-opts can name another backing file, format of it or data file than the image does,
# as with qemu-img: when the files were moved, or the image does not say the format.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

in_both qemu-img create -q -f qcow2 base.qcow2 2M
in_both qemu-io -f qcow2 -c 'write -P 1 0 1M' base.qcow2
in_both qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 over.qcow2 3M
in_both qemu-io -f qcow2 -c 'write -P 2 512k 64k' over.qcow2
in_both mv base.qcow2 moved.qcow2
in_both qemu-img create -q -f qcow2 -o data_file=data.raw data.qcow2 1M
in_both qemu-io -f qcow2 -c 'write -P 3 0 100k' data.qcow2
in_both mv data.raw moved.raw

over=driver=qcow2,file.filename=over.qcow2
data=driver=qcow2,file.filename=data.qcow2,data-file.driver=file,data-file.filename=moved.raw
both_status map over.qcow2
[ "$status" = 1 ]
for opts in "$over,backing.driver=qcow2,backing.file.filename=moved.qcow2" \
    "$over,backing.file.driver=file,backing.file.filename=moved.qcow2" \
    "$over,backing.driver=raw,backing.file.filename=moved.qcow2" "$data"; do
  both_status map --image-opts "$opts"
  [ "$status" = 0 ]
  diff theirs.out <(sed "s,$PWD/ours/,," ours.out)
  both_status check --image-opts "$opts"
  [ "$status" = 0 ]
  for format in raw qcow2; do
    both convert -O $format --image-opts "$opts" out
    same_image $format out
  done
done

# The data goes into that file.
in_both cp moved.raw before.raw
both resize --image-opts "$data" 2M
cmp theirs/moved.raw ours/moved.raw
[ "$(stat -c %s ours/moved.raw)" = 2097152 ]
[ ! -e ours/data.raw ]

# The format that an old image does not say.
in_both cp moved.qcow2 base.qcow2
cat > forget.py <<'END'
import struct
with open("over.qcow2", "r+b") as f:
    header = bytearray(f.read(4096))
    at = struct.unpack_from(">I", header, 100)[0]
    while struct.unpack_from(">I", header, at)[0] != 0xE2792ACA:
        at += 8 + (struct.unpack_from(">I", header, at + 4)[0] + 7) // 8 * 8
    header[at:at + 4] = b"????"
    f.seek(0)
    f.write(header)
END
in_both "$python" ../forget.py
img_refused 'format' convert -O raw over.qcow2 out
both convert -O raw --image-opts "$over,backing.driver=qcow2" out
same_image raw out
both convert -O raw --image-opts "$over,backing.driver=raw" out
same_image raw out

for bad in "$over,backing.driver=vmdk" "$over,backing.file.filename=none" \
    "$over,backing.file.driver=http,backing.file.filename=base.qcow2" "$over,backing.x=1" \
    driver=raw,file.filename=moved.raw,data-file.filename=moved.raw; do
  both_status map --image-opts "$bad"
  [ "$status" = 1 ]
done
img_refused 'rebase -u' rebase --image-opts -b '' "$over,backing.driver=qcow2"
