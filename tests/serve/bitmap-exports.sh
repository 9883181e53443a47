#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The export bitmap:NAME shows the data of the disk where the bitmap is marked, and a hole
# elsewhere.  QEMU judges what is marked.  Copied into an overlay over the last full copy,
# it gives the current contents of the disk, also where zeros have replaced data.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version
requires nbdcopy --version

img="$tmp/a.qcow2"

# marked_by_us NAME: "OFFSET LENGTH" of what is marked.
marked_by_us ()
{
  nbdinfo --map "$(export_uri "bitmap:$1")" > "$tmp/map"
  if awk '$3 != 0 && $3 != 3 { exit 1 }' "$tmp/map"; then :; else fail "odd extents"; fi
  awk '$3 == 0 { print $1, $2 }' "$tmp/map"
}

# What was discarded is zero clusters of the overlay.
zeros_hide_data ()
{
  qemu-img map -f qcow2 --output=json "$tmp/inc.qcow2" | "$python" -c '
import json, sys
for e in json.load(sys.stdin):
    if e["start"] <= 7 << 20 < e["start"] + e["length"]:
        sys.exit(not (e["depth"] == 0 and e["zero"] and not e["data"]))
sys.exit(1)'
}

sample 1 512 64k 2M
for cluster in "${sample[@]}"; do
  rm -f "$img" "$tmp"/*.raw "$tmp/inc.qcow2"
  size=$(((12 << 20) + 1536))
  make_image "$img" "$size" "cluster_size=$cluster"
  qemu-io -f qcow2 -c 'write -P 1 0 4M' -c 'write -P 2 6M 3M' -c 'write -P 7 12M 1536' \
    "$img" > /dev/null
  qemu-img bitmap --add -g 512 "$img" fine
  qemu-img bitmap --add "$img" normal
  qemu-img bitmap --add -g 2M "$img" coarse
  qemu-img bitmap --add "$img" still
  qemu-io -f qcow2 -c 'write -P 9 5M 1M' "$img" > /dev/null
  qemu-img bitmap --disable "$img" still
  qemu-img bitmap --clear "$img" fine
  qemu-img bitmap --clear "$img" normal
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/full.raw"

  # Changes, by QEMU and by us: data, zeros over data, trimmed data.
  qemu-io -f qcow2 -c 'write -P 3 1M 70k' -c 'write -z 2M 300k' -c 'discard 6M 2M' \
    -c 'write -P 8 12M 1536' "$img" > /dev/null
  start_nbdkit file="$img"
  nbdsh_run -c 'h.pwrite(b"\5" * 5000, 10 << 20)' -c 'h.zero(4096, 3 << 20)' \
            -c 'h.trim(2 << 20, 0)'
  stop_nbdkit
  for b in fine normal coarse still; do marked "$img" "$b" > "$tmp/$b.qemu"; done
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/now.raw"

  start_nbdkit -r -- file="$img"
  nbdinfo --list "$uri" > "$tmp/list"
  grep -q '^export="bitmap:fine":' "$tmp/list"
  grep -q 'description: what has changed, in pieces of 512 bytes; recording' "$tmp/list"
  grep -q 'bytes; disabled' "$tmp/list"
  for b in fine normal coarse still; do
    marked_by_us "$b" | diff "$tmp/$b.qemu" -
    nbdinfo --is read-only "$(export_uri "bitmap:$b")"
    [ "$(nbdinfo --size "$(export_uri "bitmap:$b")")" = "$size" ]
    # Every byte: the disk's where it is marked, else zero.
    nbdcopy "$(export_uri "bitmap:$b")" "$tmp/got.raw"
    "$python" - "$tmp/now.raw" "$tmp/$b.qemu" > "$tmp/want.raw" <<'PY'
import sys
data = open(sys.argv[1], "rb").read()
out = bytearray(len(data))
for line in open(sys.argv[2]):
    o, n = map(int, line.split())
    out[o:o + n] = data[o:o + n]
sys.stdout.buffer.write(out)
PY
    cmp "$tmp/got.raw" "$tmp/want.raw"
  done
  if nbdinfo "$(export_uri bitmap:nonesuch)"; then fail "nonesuch is served"; fi
  grep 'there is no bitmap "nonesuch"' "$tmp/main.log"

  # The incremental copy: what is now, though zeros lie over older data.
  for b in fine normal coarse; do
    source=$(export_uri "bitmap:$b")
    rm -f "$tmp/inc.qcow2"
    qemu-img create -q -f qcow2 -b full.raw -F raw "$tmp/inc.qcow2"
    "$NBDKIT" -U - "$PLUGIN" "$tmp/inc.qcow2" \
      --run "'$abs_top_builddir/img/nbdkit-qcow2-img' apply-changes '$source' \"\$uri\""
    check_clean "$tmp/inc.qcow2"
    same_as_raw "$tmp/inc.qcow2" "$tmp/now.raw"
    zeros_hide_data
    [ "$b" != fine ] || [ "$(allocated_kib "$tmp/inc.qcow2")" -lt 3000 ]

    # In place.
    cp "$tmp/full.raw" "$tmp/in-place.raw"
    "$NBDKIT" -U - file "$tmp/in-place.raw" \
      --run "'$abs_top_builddir/img/nbdkit-qcow2-img' apply-changes '$source' \"\$uri\""
    cmp "$tmp/in-place.raw" "$tmp/now.raw"
  done

  # nbdcopy does it too, in requests that are no larger than a piece of the bitmap.
  if [ "$cluster" = 64k ]; then
    source=$(export_uri bitmap:normal)
    rm -f "$tmp/inc.qcow2"
    qemu-img create -q -f qcow2 -b full.raw -F raw "$tmp/inc.qcow2"
    "$NBDKIT" -U - "$PLUGIN" "$tmp/inc.qcow2" detect-zeroes=unmap --run "
      nbdcopy --destination-is-zero --sparse=0 --request-size=65536 '$source' \"\$uri\""
    check_clean "$tmp/inc.qcow2"
    same_as_raw "$tmp/inc.qcow2" "$tmp/now.raw"
    zeros_hide_data
  fi
  stop_nbdkit
done

# The bits are those of the moment when the first client came, until the last has left.
make_image "$tmp/b.qcow2" 8M
img="$tmp/b.qcow2"
qemu-img bitmap --add "$img" day
start_nbdkit file="$img"
nbdsh_run -c - <<'PY'
import nbd
def connect(name):
    c = nbd.NBD()
    c.add_meta_context("base:allocation")
    c.set_export_name(name)
    c.connect_unix(h.get_uri().split("socket=")[1])
    return c
def marked(c):
    found = []
    def f(context, offset, entries, err):
        for length, flags in zip(entries[::2], entries[1::2]):
            if flags == 0:
                found.append((offset, length))
            offset += length
    c.block_status(8 << 20, 0, f)
    return found
h.pwrite(b"a" * 65536, 0)               # recorded, and nowhere in the file yet
one = connect("bitmap:day")
h.pwrite(b"b" * 65536, 1 << 20)
two = connect("bitmap:day")
assert marked(one) == [(0, 65536)], marked(one)
assert marked(two) == [(0, 65536)], marked(two)
assert two.pread(3, 0) == b"aaa"
h.pwrite(b"c" * 3, 0)                   # the bytes are those of now
assert two.pread(4, 0) == b"ccca"
assert two.pread(4, 1 << 20) == bytes(4)
one.shutdown()
assert marked(two) == [(0, 65536)]
two.shutdown()
# nbdkit closes a connection after it has answered: so not at once.
for i in range(500):
    three = connect("bitmap:day")
    found = marked(three)
    if found == [(0, 65536), (1 << 20, 65536)]:
        break
    three.shutdown()
else:
    raise SystemExit(found)
PY
stop_nbdkit
check_clean "$img"

# While it is served it is in use for others, not for us; void ones are refused.
start_nbdkit file="$img"
hold_connection
nbdsh_run -c 'h.pwrite(b"x", 4 << 20)'
kill9_nbdkit main
drop_connections
start_nbdkit -r -- file="$img"
if nbdinfo "$(export_uri bitmap:day)"; then fail "a void bitmap is served"; fi
grep 'bitmap "day" is inconsistent: the program' "$tmp/main.log"
nbdinfo --list "$uri" > "$tmp/list"
if grep bitmap: "$tmp/list"; then fail "a void bitmap is listed"; fi
stop_nbdkit

# The largest bitmap that QEMU can load is shown, also after a layer.
rm -f "$img"
make_image "$img" 2T
qemu-img bitmap --add -g 512 "$img" large
start_nbdkit "$img"
nbdinfo --list "$uri" | grep '^export="bitmap:large"'
nbdinfo --map "$(export_uri bitmap:large)" | grep -E '^ *0 +2199023255552 +3 '
stop_nbdkit main
