#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Images that are damaged in one way each: check=quick finds the damage and names its
# kind.  Beside each stands the result of qemu-img check, which is mostly the same where
# it finds the damage.  A corrupt image is not served, and a check changes nothing.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

base="$tmp/base.qcow2" img="$tmp/a.qcow2"

# "VERDICT CORRUPTIONS LEAKS KINDS; QEMU CORRUPTIONS LEAKS" of both reports.
summary ()
{
  "$python" - "$tmp/report.json" "$tmp/qemu.json" <<'PY'
import json, sys
def summary(name):
    try:
        r = json.load(open(name))
    except ValueError:
        return "none"
    if "layers" not in r:
        return "%d %d" % (r.get("corruptions", 0), r.get("leaks", 0))
    kinds = sorted({e["kind"] for l in r["layers"] for e in l["errors"]})
    return "%s %d %d %s" % (r["verdict"], r["corruptions"], r["leaks"],
                            ",".join(kinds) or "-")
print("; QEMU ".join(map(summary, sys.argv[1:])))
PY
}

# damaged OURS QEMU [PATCH...]
damaged ()
{
  local ours="$1" theirs="$2" status=0 before verdict
  shift 2
  cp --sparse=always "$base" "$img"
  header_patch "$img" "$@" > /dev/null
  before=$(sha256sum < "$img")
  rm -f "$tmp/report.json"
  "$NBDKIT" -U - "$PLUGIN" "$img" check=quick check-report="$tmp/report.json" \
    --run 'echo SERVED' > "$tmp/out" 2> "$tmp/err" || status=$?
  cat "$tmp/err"
  [ "$before" = "$(sha256sum < "$img")" ] || fail "the image was changed"
  qemu-img check -f qcow2 --output=json "$img" > "$tmp/qemu.json" 2> /dev/null || :
  verdict="$(summary)"
  [ "$verdict" = "$ours; QEMU $theirs" ] ||
    fail "we say '$verdict', not '$ours; QEMU $theirs': $*"
  case "$ours" in
    corrupt*)
      [ "$status" = 1 ]
      [ ! -s "$tmp/out" ]
      # All lines are errors, and the last one is about all of it.
      if grep -v '^nbdkit: error: ' "$tmp/err"; then return 1; fi
      tail -n 1 "$tmp/err" | grep -q 'check=quick: CORRUPT, not served: ' ;;
    *)
      if [ "$status" != 0 ]; then tail -n 1 "$tmp/err" | grep 'not supported'; fi
      [ "$(grep -c check=quick "$tmp/err")" = 1 ] ;;
  esac
}

# field OFFSET: 8 bytes of base as a number.
field ()
{
  echo $((0x$(od -An -tx1 -j"$1" -N8 "$base" | tr -d ' ')))
}

writes=(-c 'write -P 1 0 1M' -c 'write -P 2 10M 64k')
copied=0x8000000000000000

# --- as QEMU makes it.  Clusters: 0 header, 1 refcount table, 2 its block, 3 L1, 4 L2, 5
# and more: data.

make_image "$base" 64M
qemu-io -f qcow2 "${writes[@]}" "$base"
damaged "clean 0 0 -" "0 0"

# Refcounts and COPIED flags.
damaged "leaks 0 1 leak" "0 1" l2+24 Q 0
damaged "leaks 0 3 leak" "0 3" l2+24 Q 0 l2+32 Q 0 l2+56 Q 0
damaged "corrupt 2 0 copied-flag,refcount-too-low" "2 0" rb+12 H 0
damaged "corrupt 6 0 copied-flag,refcount-too-low" "6 0" rb+20 H 0 rb+22 H 0 rb+24 H 0
damaged "corrupt 1 1 copied-flag,leak" "1 1" rb+12 H 2
damaged "corrupt 1 0 copied-flag" "1 0" l2 Q "^$copied"
damaged "corrupt 1 0 copied-flag" "1 0" l1 Q "^$copied"
damaged "corrupt 1 1 leak,refcount-too-low" "1 1" l2 Q "$copied+0x60000"

# The refcount table.
damaged "corrupt 1 0 refcount-table" "1 1" rt Q '|1'
damaged "corrupt 1 0 refcount-table" "1 0" rt+8 Q 0x1000200
damaged "corrupt 1 0 refcount-table" "1 0" rt+8 Q 0x100000000
damaged "corrupt 1 0 overlap" "2 0" rt+8 Q rb

# Reserved bits, not aligned, out of the file.
damaged "corrupt 1 0 reserved-bits" "1 0" l2 Q '|2'
damaged "corrupt 1 0 reserved-bits" "1 0" l1 Q '|2'
damaged "corrupt 1 0 reserved-bits" "1 0" l2+4000 Q 4
damaged "corrupt 1 1 alignment,leak" "2 0" l2 Q +512
damaged "corrupt 1 18 alignment,leak" "129 15" l1 Q +512
damaged "corrupt 1 1 beyond-end-of-file,leak" "2 1" l2 Q "$copied+0x10000000000"
damaged "corrupt 1 18 beyond-end-of-file,leak" "2 18" l1 Q "$copied+0x10000000000"
damaged "corrupt 1 0 header" none 48 Q 512
damaged "corrupt 1 0 header" "1 19" 40 Q 0x10000000000

# Two things at once: data where the L1 table is, also if its count allows for that; where
# the L2 table is, the refcounts are; a flag without a table.
damaged "corrupt 1 1 leak,overlap" "1 1" l2 Q "$copied+0x30000"
damaged "corrupt 1 1 leak,overlap" "0 1" l2 Q 0x30000 rb+6 H 2
damaged "corrupt 1 1 leak,overlap" "1 1" l2 Q "$copied+0x40000"
damaged "corrupt 1 1 leak,overlap" "2 1" l2 Q "$copied+0x20000"
damaged "corrupt 1 1 leak,overlap" "1 1" l2 Q "$copied+0x10000"

# One L2 table for two parts of the disk, with refcounts that agree: writers cannot keep
# these apart.
mv "$base" "$tmp/first.qcow2"
make_image "$base" 1G
qemu-io -f qcow2 -c 'write -P 1 0 64k' "$base"
damaged "clean 0 0 -" "0 0"
damaged "corrupt 1 0 overlap" "0 0" 0x30000 Q 0x40000 0x30008 Q 0x40000 \
  0x40000 Q 0x50000 0x20008 H 2 0x2000a H 2
mv "$tmp/first.qcow2" "$base"

# An image that was not closed properly says itself that refcounts are of no use, and that is
# all it may say; a mark alone is no damage.
damaged "dirty 0 0 copied-flag,leak" "1 1" 76 I 1 rb+12 H 7
damaged "corrupt 1 0 alignment,leak" "2 0" 76 I 1 l2 Q +512
damaged "marked-corrupt 0 0 -" "0 0" 76 I 2

# --- bitmaps

qemu-img bitmap --add "$base" b0
qemu-img bitmap --add "$base" b1
qemu-io -f qcow2 -c 'write -P 3 0 128k' "$base"
at=$(grep -obUaP '\x23\x85\x28\x75' "$base" | head -n 1 | cut -d: -f1)
dir=$(field $((at + 24)))
table=$(field "$dir")
damaged "clean 0 0 -" "0 0"
damaged "clean 0 0 -" "0 0" $((dir + 12)) I 1           # in use
damaged "corrupt 1 2 beyond-end-of-file,leak" "1 2" "$dir" Q 0x10000000000
damaged "corrupt 1 2 alignment,leak" none "$dir" Q +512
damaged "corrupt 2 2 bitmap,leak" none $((dir + 8)) I 0
damaged "corrupt 1 0 bitmap" none $((dir + 12)) I 16
damaged "corrupt 1 0 bitmap" none $((dir + 16)) B 9
damaged "corrupt 1 0 bitmap" none $((dir + 17)) B 3
damaged "corrupt 1 0 bitmap" none "$table" Q '|2'
damaged "corrupt 1 1 beyond-end-of-file,leak" "1 1" "$table" Q 0x10000000000
damaged "corrupt 1 1 leak,overlap" "1 1" "$table" Q 0x30000

# --- an internal snapshot

rm "$base"
make_image "$base" 64M
qemu-io -f qcow2 "${writes[@]}" "$base"
qemu-img snapshot -c one "$base"
qemu-io -f qcow2 -c 'write -P 3 0 128k' "$base"
at=$(field 64)
l1=$(field "$at")
damaged "clean 0 0 -" "0 0"
damaged "corrupt 1 19 alignment,leak" "1 19" "$at" Q +512
damaged "corrupt 1 19 beyond-end-of-file,leak" "1 19" "$at" Q 0x10000000000
damaged "corrupt 1 19 leak,snapshot" "0 19" $((at + 8)) I 0
damaged "corrupt 1 19 leak,snapshot" "1 19" $((at + 8)) I 0x7fffffff
damaged "corrupt 1 0 snapshot-table" "1 0" $((at + 36)) I 8
damaged "corrupt 1 0 snapshot-table" none $((at + 36)) I 9000
damaged "corrupt 1 0 snapshot" "0 0" $((at + 48)) Q 0x1000000000
damaged "corrupt 1 0 snapshot-table" "1 0" 60 I 2
damaged "corrupt 1 0 reserved-bits" "1 0" l2 Q '|2'
damaged "corrupt 1 0 reserved-bits" "1 0" "$l1" Q '|2'
damaged "corrupt 1 18 alignment,leak" "129 15" "$l1" Q +512

# --- version 2

rm "$base"
make_image "$base" 64M compat=v2
qemu-io -f qcow2 "${writes[@]}" "$base"
damaged "corrupt 1 0 table-entry" "0 0" l2 Q '|1'
damaged "corrupt 1 0 table-entry" "0 0" l2+4000 Q 1

# --- extended L2 entries

rm "$base"
make_image "$base" 64M extended_l2=on
qemu-io -f qcow2 "${writes[@]}" "$base"
damaged "clean 0 0 -" "0 0"
damaged "corrupt 1 0 subclusters" "1 0" l2+8 Q 0x00000001ffffffff
damaged "corrupt 1 0 subclusters" "1 0" l2+648 Q 1
damaged "corrupt 1 0 subclusters" "1 0" l2+648 Q 0xffffffff00000001
damaged "corrupt 1 0 reserved-bits" "0 0" l2 Q '|1'
damaged "corrupt 1 1 alignment,leak" "2 0" l2 Q +512

# --- an external data file

rm "$base"
make_image "$base" 64M "data_file=$tmp/a.data"
qemu-io -f qcow2 "${writes[@]}" "$base"
damaged "clean 0 0 -" "0 0"
damaged "corrupt 1 0 table-entry" "0 0" l2 Q 0x8000000000010000
damaged "corrupt 1 0 copied-flag" "1 0" l2+8 Q 0x10000
damaged "corrupt 2 0 copied-flag,table-entry" "2 0" l2+8 Q 0xc000000000010000
damaged "corrupt 1 0 alignment" "1 0" l2+8 Q 0x8000000000010200

# --- refcounts of all widths, more than one cluster's worth of them, and v2

sample 3 cluster_size=512,refcount_bits=1 cluster_size=512,refcount_bits=2 \
  cluster_size=4k,refcount_bits=4 cluster_size=512,refcount_bits=8 \
  cluster_size=512,refcount_bits=32 cluster_size=4k,refcount_bits=64 \
  cluster_size=2M,refcount_bits=16 compat=v2,cluster_size=512
for options in "${sample[@]}"; do
  rm "$base"
  make_image "$base" 64M "$options"
  qemu-io -f qcow2 "${writes[@]}" "$base"
  damaged "clean 0 0 -" "0 0"
  damaged "leaks 0 1 leak" "0 1" l2 Q 0
  damaged "corrupt 1 0 copied-flag" "1 0" l2 Q "^$copied"
done
