#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A chain of 300 layers, each with a cluster of its own and one that hides the same
# cluster of all layers below.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

layers=300
# QEMU makes two of them; the others are copies with other names and contents.
make_image "$tmp/base.qcow2" 32M
qemu-img create -q -u -f qcow2 -b l000.qcow2 -F qcow2 "$tmp/proto.qcow2" 32M
cp "$tmp/base.qcow2" "$tmp/l000.qcow2"
qemu-io -f qcow2 -c 'write -P 1 0 64k' -c 'write -P 2 64k 64k' "$tmp/proto.qcow2"
"$python" - "$tmp" $layers <<'PY'
import struct, sys
tmp, n = sys.argv[1], int(sys.argv[2])
proto = open(tmp + "/proto.qcow2", "rb").read()
l1, = struct.unpack_from(">Q", proto, 40)
l2 = struct.unpack_from(">Q", proto, l1)[0] & 0x00fffffffffffe00
first, second = struct.unpack_from(">QQ", proto, l2)
mask = 0x00fffffffffffe00
model = bytearray(32 << 20)
for i in range(1, n + 1):
    image = bytearray(proto.ljust((second & mask) + 65536, b"\0"))
    image[:65536] = image[:65536].replace(b"l000.qcow2", b"l%03d.qcow2" % (i - 1))
    # Guest cluster 0 in all layers, cluster i in layer i alone.
    common, own = b"L%07d" % i * 8192, b"O%07d" % i * 8192
    struct.pack_into(">Q", image, l2 + 8, 0)
    struct.pack_into(">Q", image, l2 + 8 * i, second)
    image[first & mask:(first & mask) + 65536] = common
    image[second & mask:(second & mask) + 65536] = own
    model[0:65536] = common
    model[i << 16:(i + 1) << 16] = own
    name = "/l%03d.qcow2" % i if i < n else "/top.qcow2"
    with open(tmp + name, "wb") as f:
        f.write(image)
with open(tmp + "/model.raw", "wb") as f:
    f.write(model)
PY
qemu-img check -q -f qcow2 "$tmp/l001.qcow2"

start_nbdkit file="$tmp/top.qcow2"
model verify "$uri" "$tmp/model.raw"
model random "$uri" "$tmp/model.raw" --seconds 2.5
stop_nbdkit
check_clean "$tmp/top.qcow2"
# QEMU needs a moment for this.
same_as_raw "$tmp/top.qcow2" "$tmp/model.raw"

# With hardly any memory for mappings.
start_nbdkit file="$tmp/top.qcow2" l2-cache=4K l2-slice=512
model verify "$uri" "$tmp/model.raw"
stop_nbdkit
