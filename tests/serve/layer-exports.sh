#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The export layer:N shows the data that layer N of the chain itself contains, and a hole
# elsewhere; zero clusters are zeros but no holes.  qemu-img map judges.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# The chain's layers differ in size and cluster size.
random_file "$tmp/base.raw" $((5 << 20))
qemu-img create -q -f qcow2 -b base.raw -F raw -o cluster_size=4k "$tmp/mid.qcow2" 7M
qemu-io -f qcow2 -c 'write -P 1 1M 64k' -c 'write -z 2M 64k' -c 'write -P 2 6M 4k' \
  "$tmp/mid.qcow2" > /dev/null
qemu-img create -q -f qcow2 -b mid.qcow2 -F qcow2 -o cluster_size=64k "$tmp/top.qcow2" 8M
qemu-io -f qcow2 -c 'write -P 3 128k 64k' -c 'write -z 1M 64k' -c 'write -P 4 7M 192k' \
  "$tmp/top.qcow2" > /dev/null

# What the layers should be, from each image opened as if it had no backing file:
# "OFFSET LENGTH data|zero" for what it holds.
wanted ()
{
  qemu-img map -f qcow2 --output=json "$1" | "$python" -c '
import json, sys
out = []
for e in json.load(sys.stdin):
    if e["depth"] != 0 or not e["present"]:
        continue
    t = "zero" if e["zero"] and not e["data"] else "data"
    if out and out[-1][2] == t and out[-1][0] + out[-1][1] == e["start"]:
        out[-1][1] += e["length"]
    else:
        out.append([e["start"], e["length"], t])
for o in out:
    print(*o)'
}

held ()
{
  nbdinfo --map "$(export_uri "$1")" |
    awk '$3 == 0 { print $1, $2, "data" } $3 == 2 { print $1, $2, "zero" }'
}

bytes_are ()
{
  nbdsh_run -c "assert h.pread($2, $1) == bytes([$3]) * $2, 'at $1'"
}

compare_all ()
{
  held layer:0 | diff "$tmp/top.want" -
  held layer:1 | diff "$tmp/mid.want" -
  [ "$(held layer:2)" = "0 5242880 data" ]
}

wanted "$tmp/top.qcow2" > "$tmp/top.want"
wanted "$tmp/mid.qcow2" > "$tmp/mid.want"
grep -q zero "$tmp/top.want"
grep -q zero "$tmp/mid.want"

start_nbdkit -r -- file="$tmp/top.qcow2"
compare_all
nbdinfo --list "$uri" > "$tmp/list"
for i in 0 1 2; do grep -q "^export=\"layer:$i\":" "$tmp/list"; done
grep 'layer 1 of 3 only, qcow2, clusters of 4096 bytes' "$tmp/list"
grep 'layer 2 of 3 only, raw' "$tmp/list"
[ "$(nbdinfo --size "$(export_uri layer:0)")" = $((8 << 20)) ]
[ "$(nbdinfo --size "$(export_uri layer:1)")" = $((7 << 20)) ]
[ "$(nbdinfo --size "$(export_uri layer:2)")" = $((5 << 20)) ]
nbdcopy "$(export_uri layer:2)" "$tmp/got.raw"
cmp "$tmp/got.raw" "$tmp/base.raw"
for name in layer:3 layer: layer:-1 layer:0x0 layer:00000000000000000000009 layer:1a; do
  if nbdinfo "$(export_uri $name)"; then fail "$name is served"; fi
done
grep 'there is no layer "3": .* there are 3' "$tmp/main.log"
main_uri=$uri
uri=$(export_uri layer:0)
bytes_are 0 65536 0
bytes_are $((128 << 10)) 65536 3
bytes_are $((1 << 20)) 65536 0
uri=$(export_uri layer:1)
bytes_are $((128 << 10)) 65536 0
bytes_are $((1 << 20)) 65536 1
uri=$main_uri

# Its layers, one over the other, make the disk again.
qemu-img convert -f qcow2 -O raw "$tmp/top.qcow2" "$tmp/now.raw"
truncate -s 8M "$tmp/base.raw"
cp "$tmp/base.raw" "$tmp/again.raw"
for i in 1 0; do
  source=$(export_uri "layer:$i")
  "$NBDKIT" -U - file "$tmp/again.raw" \
    --run "'$abs_top_builddir/img/nbdkit-qcow2-img' apply-changes '$source' \"\$uri\""
done
cmp "$tmp/again.raw" "$tmp/now.raw"
truncate -s 5M "$tmp/base.raw"
stop_nbdkit

# Layer 0 follows what is written, also for a client that came before the first writer.
start_nbdkit file="$tmp/top.qcow2"
nbdsh_run -c - <<'PY'
import nbd
c = nbd.NBD()
c.add_meta_context("base:allocation")
c.set_export_name("layer:0")
socket = h.get_uri().split("socket=")[1]
h.shutdown()
c.connect_unix(socket)
assert c.is_read_only()
def held():
    found = []
    def f(context, offset, entries, err):
        for length, flags in zip(entries[::2], entries[1::2]):
            if flags != 3:
                found.append((offset, length, flags))
            offset += length
    c.block_status(8 << 20, 0, f)
    return found
before = held()
w = nbd.NBD()
w.connect_unix(socket)
assert held() == before
w.pwrite(b"\6" * 65536, 3 << 20)
w.zero(65536, 4 << 20)
w.pwrite(b"\7" * 65536, 5 << 20)
assert held() == sorted(before + [(3 << 20, 65536, 0), (4 << 20, 65536, 2),
                                  (5 << 20, 65536, 0)]), held()
assert c.pread(65536, 3 << 20) == b"\6" * 65536
w.flush()
PY
uri=$main_uri
stop_nbdkit
check_clean "$tmp/top.qcow2"
wanted "$tmp/top.qcow2" > "$tmp/top.want"
start_nbdkit -r -- file="$tmp/top.qcow2"
compare_all
stop_nbdkit

# Subclusters: a cluster that is there may hold only a part.
qemu-img create -q -f qcow2 -b mid.qcow2 -F qcow2 -o cluster_size=128k,extended_l2=on \
  "$tmp/sub.qcow2" 8M
qemu-io -f qcow2 -c 'write -P 3 132k 4k' -c 'write -z 1M 8k' -c 'write -P 4 7M 20k' \
  "$tmp/sub.qcow2" > /dev/null
wanted "$tmp/sub.qcow2" > "$tmp/top.want"
start_nbdkit -r -- file="$tmp/sub.qcow2"
held layer:0 | diff "$tmp/top.want" -
grep -qx '135168 4096 data' "$tmp/top.want"
stop_nbdkit
start_nbdkit file="$tmp/sub.qcow2"
hold_connection
nbdsh_run -c 'h.pwrite(b"x" * 4096, 148 << 10)'
echo '151552 4096 data' >> "$tmp/top.want"
sort -n -o "$tmp/top.want" "$tmp/top.want"
held layer:0 | diff "$tmp/top.want" -
drop_connections
stop_nbdkit
check_clean "$tmp/sub.qcow2"
