#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# check=repair corrects leaks, refcounts and COPIED flags: afterwards QEMU finds no faults
# and reads the same data, and nothing is left to repair.  An image that cannot be
# repaired, or that another program uses, is not changed and not served.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

base="$tmp/base.qcow2" img="$tmp/a.qcow2" report="$tmp/report.json"

get ()
{
  "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' \
    "$report" "$1"
}

served ()
{
  # shellcheck disable=SC2016
  "$NBDKIT" -U - "$PLUGIN" "$img" check=repair check-report="$report" \
    --run 'nbdinfo --can write "$uri"'
}

# repaired PATCH...
repaired ()
{
  cp --sparse=always "$base" "$img"
  header_patch "$img" "$@"
  if qemu-img check -q "$img"; then fail "nothing is wrong with it"; fi
  served
  [ "$(get repaired)" = True ]
  [ "$(get verdict)" = clean ]
  check_clean "$img"
  same_as_raw "$img" "$tmp/expected.raw"
  if [ -n "${snapshot:-}" ]; then
    qemu-img convert -l one -f qcow2 -O raw "$img" "$tmp/after.raw"
    cmp "$tmp/one.raw" "$tmp/after.raw"
  fi
  served
  [ "$(get repaired)" = False ]
}

copied=0x8000000000000000
sample 2 compat=v3 compat=v2 cluster_size=512,refcount_bits=64 \
  cluster_size=2M,refcount_bits=32
for options in "${sample[@]}"; do
  rm -f "$base"
  make_image "$base" 64M "$options"
  qemu-io -f qcow2 -c 'write -P 1 0 1M' -c 'write -P 2 10M 64k' "$base"
  snapshot=
  if [[ "$options" = *512* ]]; then
    snapshot=one
    qemu-img snapshot -c one "$base"
    qemu-img convert -l one -f qcow2 -O raw "$base" "$tmp/one.raw"
    qemu-io -f qcow2 -c 'write -P 3 500k 64k' "$base"
  fi
  qemu-img convert -f qcow2 -O raw "$base" "$tmp/expected.raw"
  n=$(( 0x$(od -An -tx1 -j99 -N1 "$base" | tr -d ' ') )) # refcount_order
  if [[ "$options" = *v2* ]]; then n=4; fi
  bytes=$(( (1 << n) / 8 ))
  repaired rb+$((bytes * 5 - 1)) B +1          # a leak, and a flag
  repaired rb+$((bytes - 1)) B 0               # the header's
  repaired rb s "$(printf '00%.0s' {1..400})"
  repaired l1 Q "^$copied"
  repaired l2 Q "^$copied" || repaired l2+8 Q "^$copied"
  repaired rt Q 0                              # no refcounts at all
  repaired rt+8 Q 0x1000200
done

# With an external data file everything is ours alone.
snapshot=
rm -f "$base"
make_image "$base" 64M "data_file=$tmp/a.data"
qemu-io -f qcow2 -c 'write -P 1 0 1M' -c 'write -P 2 10M 64k' "$base"
qemu-img convert -f qcow2 -O raw "$base" "$tmp/expected.raw"
repaired l2+8 Q 0x10000 rb+9 B 2
rm "$base"
make_image "$base" 64M
qemu-io -f qcow2 -c 'write -P 1 0 1M' "$base"

# The mark of a corrupt image, and of a dirty one, go.
cp "$base" "$img"
header_patch "$img" 76 I 3
served
[ "$(od -An -tx1 -j72 -N8 "$img" | tr -d ' 0')" = "" ]

# More is wrong than refcounts.
cp --sparse=always "$base" "$img"
header_patch "$img" l2 Q +512 rb+1 B +1
before=$(fingerprint "$img")
if served 2> "$tmp/err"; then fail "was served"; fi
cat "$tmp/err"
grep "cannot be repaired" "$tmp/err"
[ "$(get verdict)" = corrupt ]
[ "$before" = "$(fingerprint "$img")" ]

# A reader has it: no repair.  Without need of one, it is served.
cp --sparse=always "$base" "$img"
header_patch "$img" rb+1 B +1
before=$(fingerprint "$img")
start_nbdkit -r -- "$img"
if served 2> "$tmp/err"; then fail "was served"; fi
cat "$tmp/err"
grep "in use\|lock" "$tmp/err"
[ "$before" = "$(fingerprint "$img")" ]
# shellcheck disable=SC2016
"$NBDKIT" -r -U - "$PLUGIN" "$base" check=repair --run 'nbdinfo --is readonly "$uri"'
stop_nbdkit

# Counts are wrong, and the repair cannot use the snapshot table: an L1 table without
# entries that is not aligned.  Not even the dirty bit is set.
rm -f "$img"
make_image "$img" 1M
qemu-io -f qcow2 -c 'write -P 7 0 256k' "$img"
qemu-img snapshot -c s "$img"
snapshots=$((0x$(od -An -tx1 -j64 -N8 "$img" | tr -d ' ')))
header_patch "$img" "$snapshots" Q 512 $((snapshots + 8)) I 0 $((snapshots + 48)) Q 0
before="$(fingerprint "$img")"
if served 2> "$tmp/err"; then fail "was served"; fi
grep "L1 table offset is not aligned" "$tmp/err"
[ "$before" = "$(fingerprint "$img")" ]

# The file can't be written (root can write any file).
if [ "$(id -u)" != 0 ]; then
  chmod a-w "$img"
  if served 2> "$tmp/err"; then fail "was served"; fi
  grep "not writable" "$tmp/err"
fi
