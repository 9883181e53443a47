#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If the file of an image is larger than what it has in use, the first bitmap is not put at the
# end of the file, which perhaps no refcount table describes.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

for how in '64k 1G' '512 200G'; do
  read -r cluster size <<< "$how"
  qemu-img create -q -f qcow2 -o cluster_size="$cluster" a.qcow2 8M
  qemu-io -f qcow2 -c 'write -P 1 0 1M' a.qcow2
  truncate -s "$size" a.qcow2
  img bitmap --add a.qcow2 b
  img info a.qcow2 | grep 'name: b$'
  qemu-img check --output=json a.qcow2 > checked
  "$python" -c 'import json
assert json.load(open("checked"))["image-end-offset"] < 8 << 20'
  rm a.qcow2
done
