#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# check=repair-leaks gives back leaked clusters, as "qemu-img check -r leaks" does, with
# the same numbers in the report.  If anything else is wrong, it changes nothing.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

base="$tmp/base.qcow2" img="$tmp/a.qcow2" report="$tmp/report.json"

served ()
{
  "$NBDKIT" -U - "$PLUGIN" "$img" check=repair-leaks check-report="$report" --run true
}

get ()
{
  "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' \
    "$report" "$1"
}

leaks=0 others=0
copied=0x8000000000000000
for options in compat=v3 compat=v2 cluster_size=512,refcount_bits=64 \
               cluster_size=2M,refcount_bits=32 lazy_refcounts=on; do
  rm -f "$base"
  make_image "$base" 64M "$options"
  qemu-io -f qcow2 -c 'write -P 1 0 1M' -c 'write -P 2 10M 64k' -c 'discard 128k 256k' \
    "$base"
  qemu-img convert -f qcow2 -O raw "$base" "$tmp/expected.raw"
  n=$(( 0x$(od -An -tx1 -j99 -N1 "$base" | tr -d ' ') )) # refcount_order
  if [[ "$options" = *v2* ]]; then n=4; fi
  bytes=$(( (1 << n) / 8 ))

  # The count of the header, which has no flag; and of a cluster that was discarded.
  for leak in 0 8; do
    cp --sparse=always "$base" "$img"
    header_patch "$img" rb+$((bytes * (leak + 1) - 1)) B +1
    status=0
    qemu-img check -q "$img" || status=$?
    if [ $leak != 0 ] && [ $status != 3 ]; then continue; fi     # it is in use, or away
    [ $status = 3 ]
    leaks=$((leaks + 1))
    cp --sparse=always "$img" "$tmp/theirs.qcow2"
    qemu-img check -q -r leaks "$tmp/theirs.qcow2"
    served
    [ "$(get check)" = repair-leaks ]
    [ "$(get repaired)" = True ]
    [ "$(get verdict)" = clean ]
    [ "$(get leaks)" = 0 ]
    [ "$(get leaks-fixed)" = 1 ]
    [ "$(get corruptions-fixed)" = 0 ]
    check_clean "$img"
    same_as_raw "$img" "$tmp/expected.raw"
    served
    [ "$(get repaired)" = False ]
  done

  # A leak, and more: QEMU says so, too, and repairs only the leak.  We change nothing.
  for more in "l2 Q ^$copied" "rb+$((bytes * 4 - 1)) B 0"; do
    cp --sparse=always "$base" "$img"
    # shellcheck disable=SC2086
    header_patch "$img" rb+$((bytes - 1)) B +1 $more
    status=0
    qemu-img check -q "$img" || status=$?
    if [ $status != 2 ]; then continue; fi      # nothing is there
    others=$((others + 1))
    before=$(fingerprint "$img")
    if served 2> "$tmp/err"; then fail "was served"; fi
    grep "cannot be repaired: more is wrong than leaks; nothing was changed" "$tmp/err"
    [ "$(get verdict)" = corrupt ]
    [ "$before" = "$(fingerprint "$img")" ]
  done
done

echo "$leaks leaks, $others other faults"
[ $leaks -ge 7 ]
[ $others -ge 6 ]

# Outdated refcounts of an image that was not closed properly are left to the first
# writer.  If it only has leaks, these go, and the mark.
cp --sparse=always "$base" "$img"
header_patch "$img" 76 I 1 rb+1 B 0
before=$(fingerprint "$img")
served 2> "$tmp/err"
if grep "cannot be repaired" "$tmp/err"; then fail "there is nothing to say"; fi
[ "$(get verdict)" = dirty ]
[ "$before" = "$(fingerprint "$img")" ]
cp --sparse=always "$base" "$img"
header_patch "$img" 76 I 1 rb+1 B +1
served
[ "$(get verdict)" = clean ]
[ "$(od -An -tx1 -j72 -N8 "$img" | tr -d ' 0')" = "" ]
check_clean "$img"

refused 'snapshot= cannot be used with check=repair-leaks' "$img" snapshot=s \
  check=repair-leaks
