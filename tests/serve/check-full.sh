#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# check=full finds damage outside the metadata of the top image: compressed clusters that
# cannot be decompressed (also of snapshots), damage in backing files, chains that loop,
# invalid LUKS headers.  check=quick checks only the LUKS header.  An incomplete chain is
# not corrupt, and an image that is marked corrupt is not clean.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

report="$tmp/report.json"

# checked MODE IMAGE [PARAMETER...]: sets $status and $found:
# "VERDICT LAYERS KIND:LAYER,..."
checked ()
{
  local mode="$1" image="$2"
  shift 2
  rm -f "$report"
  status=0
  # shellcheck disable=SC2016
  "${soon[@]}" "$NBDKIT" -U - "$PLUGIN" "$image" check="$mode" check-report="$report" \
    "$@" --run 'nbdinfo --size "$uri"' > "$tmp/out" 2> "$tmp/err" || status=$?
  cat "$tmp/out" "$tmp/err"
  found=$("$python" - "$report" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["ok"] == (r["verdict"] in ("clean", "leaks", "dirty", "marked-corrupt"))
kinds = sorted({"%s:%d" % (e["kind"], i) for i, l in enumerate(r["layers"])
                for e in l["errors"]})
print(r["verdict"], len(r["layers"]), ",".join(kinds) or "-")
PY
)
}

is ()
{
  [ "$found" = "$1" ] || fail "found '$found', not '$1'"
  case "$1" in
    corrupt* | incomplete* | failed*) [ "$status" = 1 ] && [ ! -s "$tmp/out" ] ;;
    *) [ "$status" = 0 ] && [ -s "$tmp/out" ] ;;
  esac
}

# --- compressed clusters.  There are no checksums: only what is no stream can be found.

# spoil IMAGE INDEX: the stream of the compressed cluster that this entry of the first L2
# table names.
spoil ()
{
  header_patch "$1" "$("$python" - "$1" "$2" <<'PY'
import struct, sys
with open(sys.argv[1], "rb") as f:
    h = f.read(48)
    f.seek(struct.unpack_from(">Q", h, 40)[0])
    f.seek((struct.unpack(">Q", f.read(8))[0] & (1 << 56) - 1) + 8 * int(sys.argv[2]))
    entry, = struct.unpack(">Q", f.read(8))
    assert entry >> 62 & 1
    print(entry & (1 << 70 - struct.unpack_from(">I", h, 20)[0]) - 1)
PY
)" s ffffff
}

zstd=
if "$NBDKIT" "$PLUGIN" --dump-plugin | grep qcow2_zstd=yes > /dev/null; then
  zstd=compression_type=zstd
fi
# shellcheck disable=SC2086
sample 2 cluster_size=4k cluster_size=64k cluster_size=2M $zstd
for options in "${sample[@]}"; do
  img="$tmp/c.qcow2"
  rm -f "$img"
  random_file "$tmp/r.raw" $((3 << 20))
  # Text compresses.
  od -An -v -tx1 "$tmp/r.raw" > "$tmp/t.raw"
  truncate -s 8M "$tmp/t.raw"
  qemu-img convert -c -O qcow2 -o "$options" "$tmp/t.raw" "$img"
  checked full "$img"; is "clean 1 -"
  [ "$("$python" -c 'import json, sys; l = json.load(open(sys.argv[1]))["layers"][0]
print(l["compressed-clusters"] == l["total-clusters"] > 0)' "$report")" = True ]
  spoil "$img" 3
  qemu-img check "$img"
  checked quick "$img"; is "clean 1 -"
  checked full "$img"; is "corrupt 1 compressed-data:0"
  grep "cannot be decompressed" "$tmp/err"
done

# Only a snapshot has it.
img="$tmp/s.qcow2"
qemu-img convert -c -O qcow2 "$tmp/t.raw" "$img"
qemu-img snapshot -c one "$img"
cp "$img" "$tmp/s2.qcow2"
spoil "$img" 5
qemu-io -f qcow2 -c 'write 0 8M' "$img"
qemu-io -f qcow2 -c 'write 0 8M' "$tmp/s2.qcow2"
checked full "$tmp/s2.qcow2"; is "clean 1 -"
checked full "$img"; is "corrupt 1 compressed-data:0"

# --- the backing chain

chain ()
{
  rm -f "$tmp"/[0-3].*
  random_file "$tmp/0.raw" $((1 << 20))
  make_image "$tmp/1.qcow2" 4M "backing_file=0.raw,backing_fmt=raw"
  make_image "$tmp/2.qcow2" 4M "backing_file=1.qcow2,backing_fmt=qcow2"
  make_image "$tmp/3.qcow2" 4M "backing_file=2.qcow2,backing_fmt=qcow2"
  for i in 1 2 3; do
    qemu-io -f qcow2 -c "write -P $i 2M 256k" "$tmp/$i.qcow2"
  done
}

chain
checked full "$tmp/3.qcow2"; is "clean 4 -"
checked quick "$tmp/3.qcow2"; is "clean 1 -"

header_patch "$tmp/1.qcow2" l2+256 Q +512
checked quick "$tmp/3.qcow2"; is "clean 1 -"
checked full "$tmp/3.qcow2"; is "corrupt 4 alignment:2,leak:2"
header_patch "$tmp/1.qcow2" l2+256 Q 0
checked full "$tmp/3.qcow2"; is "leaks 4 leak:2"

chain
rm "$tmp/0.raw"
# No file is damaged, but one is missing.
checked full "$tmp/3.qcow2"; is "incomplete 4 missing-file:2"
grep "0.raw.*No such file" "$tmp/err"
grep "1.qcow2: its backing file is missing" "$tmp/err"
checked quick "$tmp/3.qcow2"; is "incomplete 1 -"

# Nor is an image clean that another program marked as corrupt.
chain
header_patch "$tmp/3.qcow2" 72 Q 2
for mode in quick:1 full:4; do
  checked "${mode%:*}" "$tmp/3.qcow2"; is "marked-corrupt ${mode#*:} -"
  grep "marked corrupt and only read until a repair removes the mark" "$tmp/err"
done
checked repair "$tmp/3.qcow2"; is "clean 1 -"
checked full "$tmp/3.qcow2"; is "clean 4 -"

chain
qemu-img rebase -u -f qcow2 -F qcow2 -b 3.qcow2 "$tmp/1.qcow2"
checked full "$tmp/3.qcow2"; is "corrupt 4 backing-chain:3"
grep "contains a loop" "$tmp/err"

chain
header_patch "$tmp/2.qcow2" 0 I 0
checked full "$tmp/3.qcow2"; is "corrupt 2 header:1"

chain
checked full "$tmp/3.qcow2" backing="$tmp/0.raw" backing-format=raw; is "clean 2 -"
status=0
"$NBDKIT" -U - "$PLUGIN" "$tmp/3.qcow2" check=full backing=deny --run true || status=$?
[ "$status" = 1 ]

# --- LUKS

img="$tmp/luks.qcow2"
qemu-img create -q -f qcow2 --object secret,id=s,data=abc \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 "$img" 4M
checked full "$img" passphrase=abc; is "clean 1 -"
# A passphrase is needed to serve it.
checked full "$img"; is "failed 1 -"
cp "$img" "$tmp/l.qcow2"
at=$(grep -obUaP 'LUKS\xba\xbe' "$img" | head -n 1 | cut -d: -f1)
header_patch "$tmp/l.qcow2" "$at" B 0
checked quick "$tmp/l.qcow2" passphrase=abc; is "corrupt 1 encryption-header:0"
cp "$img" "$tmp/l.qcow2"
header_patch "$tmp/l.qcow2" $((at + 104)) I 1
checked quick "$tmp/l.qcow2" passphrase=abc; is "corrupt 1 encryption-header:0"
