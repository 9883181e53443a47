#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Block status of a raw external data file shows zeros, so that copies are sparse:
# everything that QEMU knows to be zeros, and also holes; but no data.  In an encrypted
# data file, a hole is not zeros.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version

# Can this file system punch holes, and tell of them?
random_file "$tmp/probe" $((1 << 20))
requires fallocate -p -o 0 -l 524288 "$tmp/probe"
requires "$python" -c "
import os, sys
f = os.open('$tmp/probe', os.O_RDONLY)
sys.exit(os.lseek(f, 0, os.SEEK_DATA) != 524288)"

img="$tmp/a.qcow2" data="$tmp/a.data"

# compare: our map with QEMU's and with what is there.
compare ()
{
  qemu-img map --output=json "$img" > "$tmp/map.qemu"
  start_nbdkit -r -- file="$img"
  qemu-img map --output=json "$uri" > "$tmp/map.ours"
  rm -f "$tmp/copy"
  nbdcopy "$uri" "$tmp/copy"
  stop_nbdkit
  cmp -n $((8 << 20)) "$data" "$tmp/copy"
  "$python" - "$tmp" <<'PY'
import json, sys
tmp = sys.argv[1]
def zeros(name):
    known = bytearray(8 << 20)
    for e in json.load(open(f"{tmp}/{name}")):
        if e["zero"]:
            known[e["start"]:e["start"] + e["length"]] = b"\1" * e["length"]
    return known
qemu, ours = zeros("map.qemu"), zeros("map.ours")
data = open(f"{tmp}/a.data", "rb").read()
for at in range(0, 8 << 20, 512):
    assert ours[at] or not qemu[at], f"{at} is zeros, says QEMU"
    assert not ours[at] or data[at:at + 512] == bytes(512), f"{at} is data"
PY
}

# wants MAP-LINE...: what nbdinfo says, in MiB.
wants ()
{
  diff -u <(printf '%s\n' "$@") \
    <(nbdinfo --map "$uri" | awk '{ print $1 / 1048576, $2 / 1048576, $4 }')
}

for options in cluster_size=64k extended_l2=on cluster_size=4k; do
  rm -f "$data"
  make_image "$img" 8M "data_file=$data,data_file_raw=on,$options"
  compare
  qemu-io -f qcow2 -d unmap -c 'write -P 1 0 4M' -c 'write -z 64k 1M' \
    -c 'write -z -u 2M 1M' -c 'discard 3500k 256k' -c 'write -z 1000 5k' "$img"
  compare

  # What we do ourselves: each way to zeros.
  rm -f "$data"
  make_image "$img" 8M "data_file=$data,data_file_raw=on,$options"
  start_nbdkit file="$img"
  hold_connection
  nbdsh_run -c - <<'PY'
m = 1 << 20
h.pwrite(b"A" * 6 * m, 0)
h.flush()
h.zero(m, m)
h.zero(m, 2 * m, nbd.CMD_FLAG_NO_HOLE)
h.trim(m, 4 * m)
PY
  wants '0 1 data' '1 2 hole,zero' '3 1 data' '4 1 hole,zero' '5 1 data' '6 2 hole,zero'
  nbdsh_run -c 'h.pwrite(b"B" * (1 << 20), 2 << 20)'
  wants '0 1 data' '1 1 hole,zero' '2 2 data' '4 1 hole,zero' '5 1 data' '6 2 hole,zero'
  drop_connections
  stop_nbdkit
  compare
  [ "$(allocated_kib "$tmp/copy")" -lt 4500 ]
done

# Encrypted: all of it is data, but what the image itself says.
rm -f "$data"
qemu-img create -q -f qcow2 --object secret,id=s,data=abc \
  -o "data_file=$data,data_file_raw=on,encrypt.format=aes,encrypt.key-secret=s" "$img" 8M
start_nbdkit file="$img" passphrase=abc
nbdsh_run -c 'h.pwrite(b"A" * (4 << 20), 0)' -c 'h.zero(1 << 20, 1 << 20)' \
  -c 'h.trim(1 << 20, 2 << 20)'
wants '0 8 data'
nbdsh_run -c 'assert h.pread(1 << 20, 1 << 20) == bytes(1 << 20)'
stop_nbdkit
