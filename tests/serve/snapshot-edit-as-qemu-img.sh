#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# snapshot-create, -apply and -delete do what qemu-img snapshot -c, -a and -d do: each
# continues with the result of the other, for all versions, refcount widths and cluster
# sizes, with compressed, zero and encrypted clusters.  A change that is not possible is
# refused with one line, and changes nothing.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

img="$tmp/a.qcow2"

change ()
{
  local seed="$1"
  qemu-io -f qcow2 -d unmap -c "write -P $seed ${seed}00k 300k" \
    -c "write -z 1M 64k" -c "discard $((seed * 64))k 128k" "$img" > /dev/null
}

contents ()
{
  qemu-img convert -f qcow2 -O raw ${2:+-l "snapshot.name=$2"} "$img" "$1"
}

is ()
{
  contents "$tmp/is.raw" "${2-}"
  cmp "$tmp/is.raw" "$1"
}

# id and name of each snapshot
listed ()
{
  qemu-img snapshot -l "$img" | awk 'NR > 2 { print $1 "=" $2 }' | paste -sd' '
}

sample 3 v2:16:64k v3:2:4k v3:4:512 v3:8:64k v3:16:2M v3:32:4k v3:64:512 sub:16:32k
for row in "${sample[@]}"; do
  IFS=: read -r compat bits cluster <<< "$row"
  rm -f "$img"
  how_made="compat=$compat,cluster_size=$cluster"
  if [ "$compat" = v3 ]; then how_made+=",refcount_bits=$bits"; fi
  if [ "$compat" = sub ]; then how_made="extended_l2=on,cluster_size=$cluster"; fi
  make_image "$img" 4M "$how_made"
  # A compressed cluster that shares its host cluster with others.
  if [ "$bits" -ge 4 ]; then
    for i in 0 1 2; do
      qemu-io -f qcow2 -c "write -c -P $i $((i * 2))M $cluster" "$img" || :
    done
  fi
  change 1
  contents "$tmp/one.raw"
  start_and_end "$img" snapshot-create=one
  check_clean "$img"
  is "$tmp/one.raw"
  change 5
  contents "$tmp/two.raw"
  qemu-img snapshot -c two "$img"
  change 9
  contents "$tmp/now.raw"
  if [ "$bits" -gt 2 ]; then
    # In the order in which they are given, and back.
    start_and_end "$img" snapshot-create=now snapshot-apply=one snapshot-apply=two \
      snapshot-apply=now
    check_clean "$img"
    is "$tmp/now.raw"
    [ "$(listed)" = "1=one 2=two 3=now" ]
    qemu-img snapshot -d now "$img"
    check_clean "$img"
  fi
  is "$tmp/one.raw" one
  is "$tmp/two.raw" two
  # Ours applied by QEMU, QEMU's by us.
  if [ "$bits" -gt 2 ]; then
    qemu-img snapshot -a one "$img"
  else
    # A count of 3 is the largest: QEMU adds references before it drops any.
    start_and_end "$img" snapshot-apply=one
  fi
  check_clean "$img"
  is "$tmp/one.raw"
  start_and_end "$img" snapshot-apply=2
  check_clean "$img"
  is "$tmp/two.raw"
  # What is applied and changed goes back to the same.
  change 3
  start_and_end "$img" snapshot-apply=two
  check_clean "$img"
  is "$tmp/two.raw"
  start_and_end "$img" snapshot-delete=one
  check_clean "$img"
  is "$tmp/two.raw"
  is "$tmp/two.raw" two
  start_and_end "$img" snapshot-delete=two
  check_clean "$img"
  is "$tmp/two.raw"
  [ "$(listed)" = "" ]
  # The server serves it, and writes to it.
  start_and_end "$img" snapshot-create=served
  start_nbdkit "$img"
  nbdsh_run -c 'h.pwrite(b"x" * 100000, 12345); h.flush()'
  stop_nbdkit main
  check_clean "$img"
  is "$tmp/two.raw" served
done

# Two of one name: the first is meant, the other has an id.  Ids go on from the largest.
rm -f "$img"
make_image "$img" 4M
start_and_end "$img" snapshot-create=twin snapshot-create=twin snapshot-create=x
[ "$(listed)" = "1=twin 2=twin 3=x" ]
start_and_end "$img" snapshot-delete=twin
start_and_end "$img" snapshot-create=3
[ "$(listed)" = "2=twin 3=x 4=3" ]
qemu-img snapshot -c theirs "$img"
[ "$(listed)" = "2=twin 3=x 4=3 5=theirs" ]

refused_untouched 'name of one snapshot and the id of another' "$img" snapshot-delete=3
refused_untouched 'no snapshot "nobody"' "$img" snapshot-apply=nobody
refused_untouched 'no snapshot "nobody"' "$img" snapshot-delete=nobody
refused_untouched '1 to 255 bytes' "$img" snapshot-create=
refused_untouched '1 to 255 bytes' "$img" snapshot-create="$(printf '%0256d' 0)"
refused_untouched 'untrusted' "$img" snapshot-create=y untrusted=true
# Those before the one that can't be done are done.
refused 'no snapshot' "$img" snapshot-create=done snapshot-delete=nobody
[ "$(listed)" = "2=twin 3=x 4=3 5=theirs 6=done" ]

# Somebody uses the image.
start_nbdkit -r -- "$img"
refused_untouched 'in use|lock' "$img" snapshot-create=locked
stop_nbdkit main

# No count can be larger than 1: only what is empty can be shared.
rm -f "$img"
make_image "$img" 4M refcount_bits=1
start_and_end "$img" snapshot-create=empty
check_clean "$img"
start_and_end "$img" snapshot-delete=empty
change 1
refused_untouched 'refcounts of the image have 1 bit' "$img" snapshot-create=full
check_clean "$img"
rm -f "$img"
make_image "$img" 4M refcount_bits=2
change 1
start_and_end "$img" snapshot-create=1 snapshot-create=2
refused_untouched 'refcounts of the image have 2 bits' "$img" snapshot-create=3
check_clean "$img"

# The size that the disk had comes back.
rm -f "$img"
make_image "$img" 4M
change 1
contents "$tmp/small.raw"
start_and_end "$img" snapshot-create=small resize=8M snapshot-create=large resize=1M \
  shrink=true
check_clean "$img"
qemu-img snapshot -a small "$img"
is "$tmp/small.raw"
start_and_end "$img" snapshot-apply=large
[ "$(qemu-img info "$img" | grep -c '8 MiB')" = 1 ]
start_and_end "$img" snapshot-apply=small
is "$tmp/small.raw"
check_clean "$img"

# Bitmaps know nothing of what applying changes; the rest does not touch them.
rm -f "$img"
make_image "$img" 4M
start_and_end "$img" snapshot-create=before
qemu-img bitmap --add "$img" b
change 1
start_and_end "$img" snapshot-create=after snapshot-delete=before
refused_untouched 'persistent bitmaps .* record the change: remove them' "$img" snapshot-apply=after
qemu-img info "$img" | grep -A 3 'flags:' | grep -q auto
if qemu-img info "$img" | grep in-use; then fail "in use"; fi
check_clean "$img"

# Data in another file have no refcounts.
rm -f "$img"
make_image "$img" 4M data_file="$tmp/data.raw"
refused_untouched 'external data file' "$img" snapshot-create=s

# Left dirty by a crash: repaired first.
rm -f "$img"
make_image "$img" 4M lazy_refcounts=on
qemu-io -f qcow2 -c 'write -P 1 0 1M' -c flush -c abort "$img" || :
if qemu-img check "$img"; then fail "not dirty"; fi
start_and_end "$img" snapshot-create=s
check_clean "$img"

# Encrypted: metadata only, but serving needs the passphrase.
rm -f "$img"
secret=(--object "secret,id=s,data=open")
spec="driver=qcow2,file.filename=$img,encrypt.key-secret=s"
qemu-img create -q -f qcow2 "${secret[@]}" \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 "$img" 4M
qemu-io "${secret[@]}" -c 'write -P 1 0 1M' --image-opts "$spec"
start_and_end "$img" passphrase=open snapshot-create=s
qemu-io "${secret[@]}" -c 'write -P 2 0 1M' --image-opts "$spec"
start_and_end "$img" passphrase=open snapshot-apply=s
qemu-io "${secret[@]}" -c 'read -P 1 0 1M' --image-opts "$spec" | tee "$tmp/out"
if grep failed "$tmp/out"; then fail "reads something else"; fi
qemu-img check "${secret[@]}" --image-opts "$spec"
