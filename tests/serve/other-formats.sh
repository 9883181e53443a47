#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A file that is not a qcow2 image is refused with what it is, and with what to do.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

cd "$tmp"
make_image disk.qcow2 1M

# Images that QEMU makes.
for kind in vmdk=VMDK vdi=VDI vhdx=VHDX qed=QED parallels=Parallels vpc=VHD; do
  qemu-img create -q -f ${kind%=*} x 1M
  refused "x: not a qcow2 image, but a ${kind#*=} image: qemu-img convert" x
done

# What other programs make of an image.
"$python" - <<'PY'
import bz2, gzip, lzma, tarfile, zipfile
data = open("disk.qcow2", "rb").read()
for name, pack in ("gzip", gzip.compress), ("xz", lzma.compress), ("bzip2", bz2.compress):
    open(name, "wb").write(pack(data))
zipfile.ZipFile("zip", "w").write("disk.qcow2")
tarfile.open("tar", "w").add("disk.qcow2")
PY
for format in gzip xz bzip2; do
  refused "not a qcow2 image, but compressed with $format: unpack it" $format
done
refused 'not a qcow2 image, but a ZIP archive: unpack it' zip
refused 'not a qcow2 image, but a tar archive .*: unpack it' tar

# Marks that a qcow2 file can have as well, from the list itself.
"$python" - "$srcdir/../core/format/formatmarks.h" > marks <<'PY'
import ast, re, sys
for n, line in enumerate(open(sys.argv[1])):
    m = re.match(r'MARK \(([1-9]\d*), ("[^"]*"), "([^"]*)"', line)
    if m:
        with open("mark%d" % n, "wb") as f:
            f.seek(int(m.group(1)))
            f.write(ast.literal_eval("b" + m.group(2)) + bytes(100000))
        print("mark%d" % n, m.group(3).split()[-1])
PY
[ "$(wc -l < marks)" -ge 20 ]
while read -r file name; do
  case "$name" in
    MBR) what='raw disk with a boot sector or partition table' ;;
    ext4) what='raw disk with an ext filesystem' ;;
    9660) what='ISO 9660' ;;
    *) what="$name" ;;
  esac
  refused "not a qcow2 image, but .*$what.*: (nbdkit's file plugin|qemu-img|unpack)" "$file"
done < marks

# And if it is not known.
echo text > text
refused "not a qcow2 image: it begins like no known format; if it is a raw disk, .* file plugin" text
: > empty
refused 'not a qcow2 image: the file is empty' empty
