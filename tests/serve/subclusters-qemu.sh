#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Subclusters in all their states: the plugin reads what QEMU writes, and maps it in the
# same way; QEMU reads what the plugin writes, zeroes and trims; and the host clusters are
# in their expected places.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

img="$tmp/a.qcow2"
random_file "$tmp/base.raw" $((3 << 20))

# map FILE: allocation as QEMU sees it in the top image: start, length, zero or data,
# and whether there is a host offset.
map ()
{
  qemu-img map -U -f qcow2 --output=json "$1" | "$python" -c '
import json, sys
for e in json.load(sys.stdin):
    print(e["start"] >> 10, e["length"] >> 10,
          "below" if e["depth"] else "zero" if e["zero"] else "data",
          "offset" in e and not e["depth"])'
}

# Subclusters are 4k: cluster n begins at n * 128k.
create="extended_l2=on,cluster_size=128k,backing_file=base.raw,backing_fmt=raw"

# --- QEMU writes.
make_image "$img" 4M "$create"
qemu-io -f qcow2 -d unmap -c 'write -P 1 4k 4k' -c 'write -P 2 9k 1k' \
  -c 'write -z 20k 8k' -c 'write -z 128k 128k' -c 'write -P 3 256k 256k' \
  -c 'write -z -u 300k 8k' -c 'discard 384k 128k' -c 'write -P 4 384k 512' \
  -c 'write -P 5 3100k 4k' -c 'write -c -P 6 640k 128k' \
  -c 'write -c -P 7 768k 128k' -c 'write -P 8 777k 1k' "$img"
qemu-img convert -f qcow2 -O raw "$img" "$tmp/expected.raw"
for reader in -r ""; do
  # shellcheck disable=SC2086
  start_nbdkit $reader -- file="$img"
  model verify "$uri" "$tmp/expected.raw"
  # Clients are told what is worth to be aligned to.
  nbdinfo "$uri" > "$tmp/info"
  grep 'block_size_preferred: 4096' "$tmp/info"
  grep '128K clusters of 4K subclusters' "$tmp/info"
  stop_nbdkit
done

# --- We write, zero and trim.
make_image "$img" 4M "$create"
start_nbdkit file="$img"
nbdsh_run -c - <<'PY'
K = 1024
h.pwrite(b"\1" * 4 * K, 4 * K)                  # one subcluster
h.pwrite(b"\2" * K, 13 * K)                     # a part of one
h.zero(8 * K, 20 * K)                           # zeros in a cluster that has space
h.zero(12 * K, 130 * K)                         # and in one that has none; edges
h.pwrite(b"\3" * 256 * K, 256 * K)
h.zero(8 * K, 300 * K)
h.zero(8 * K, 320 * K, nbd.CMD_FLAG_NO_HOLE)
h.pwrite(b"\4" * 4 * K, 320 * K)                # written again where it was
h.trim(128 * K, 384 * K)                        # a whole cluster
h.trim(64 * K, 512 * K)                         # not a whole one: left alone
h.pwrite(b"\5" * 100, 3100 * K)                 # beyond the backing file
PY
stop_nbdkit
check_clean "$img"
map "$img" | tee "$tmp/map"
diff -u - "$tmp/map" <<'EOM'
0 4 below False
4 4 data True
8 4 below False
12 4 data True
16 4 below False
20 8 zero True
28 100 below False
128 4 data True
132 8 zero True
140 4 data True
144 112 below False
256 44 data True
300 8 zero True
308 16 data True
324 4 zero True
328 56 data True
384 128 zero False
512 2560 below False
3072 28 zero True
3100 4 data True
3104 96 zero True
3200 896 zero False
EOM
"$python" - "$tmp/base.raw" "$tmp/expected.raw" <<'PY'
import sys
K = 1024
d = bytearray(open(sys.argv[1], "rb").read()) + bytes(1024 * K)
def put(at, n, byte):
    d[at:at + n] = bytes([byte]) * n
put(4 * K, 4 * K, 1)
put(13 * K, K, 2)
put(20 * K, 8 * K, 0)
put(130 * K, 12 * K, 0)
put(256 * K, 256 * K, 3)
put(300 * K, 8 * K, 0)
put(320 * K, 4 * K, 4)
put(324 * K, 4 * K, 0)
put(384 * K, 128 * K, 0)
put(3100 * K, 100, 5)
open(sys.argv[2], "wb").write(d)
PY
same_as_raw "$img" "$tmp/expected.raw"
# QEMU goes on with it.
qemu-io -f qcow2 -c 'read -P 1 4k 4k' -c 'write -P 9 20k 4k' -c 'write -P 10 385k 3k' \
  -c 'write -P 11 140k 2k' "$img"
check_clean "$img"
start_nbdkit -r -- file="$img"
nbdsh_run -c 'K = 1024' \
  -c 'assert h.pread(8 * K, 20 * K) == b"\x09" * 4 * K + bytes(4 * K)' \
  -c 'assert h.pread(5 * K, 384 * K) == bytes(K) + b"\x0a" * 3 * K + bytes(K)'
stop_nbdkit

# --- A compressed cluster is rewritten whole; a part of it can be zeroed.
make_image "$img" 1M extended_l2=on,cluster_size=64k
qemu-io -f qcow2 -c 'write -c -P 6 0 64k' -c 'write -c -P 7 64k 64k' \
  -c 'write -c -P 8 128k 64k' "$img"
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"a" * 1000, 30000)' -c 'h.zero(4096, 65536 + 2048)' \
  -c 'h.trim(65536, 131072)'
stop_nbdkit
check_clean "$img"
qemu-io -f qcow2 -c 'read -P 6 0 30000' -c 'read -P 97 30000 1000' \
  -c 'read -P 6 31000 34536' -c 'read -P 7 64k 2k' -c 'read -P 0 66k 4k' \
  -c 'read -P 7 70k 58k' -c 'read -P 0 128k 64k' "$img" > "$tmp/out"
cat "$tmp/out"
if grep -q 'verification failed' "$tmp/out"; then fail "QEMU reads something else"; fi

# --- The whole of a cluster goes when it is trimmed, whatever its subclusters are.
make_image "$img" 1M extended_l2=on,cluster_size=64k,preallocation=falloc
start_nbdkit file="$img"
nbdsh_run -c 'for i in range(2048, 1 << 20, 4096): h.pwrite(b"x" * 2048, i)' \
  -c 'h.flush()' -c 'h.trim(1 << 20, 0)' -c 'h.flush()'
stop_nbdkit
check_clean "$img"
map "$img"
[ "$(map "$img")" = "0 1024 zero False" ]
[ "$(allocated_kib "$img")" -lt 500 ]
