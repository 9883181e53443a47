#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img resize, snapshot, bitmap and commit change an image as qemu-img does, and
# refuse what it refuses.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

# refused_by_both ARGUMENT...: and the image stays as it is.
refused_by_both ()
{
  local before

  before=$(fingerprint ours/disk.qcow2)
  both_status "$@"
  [ "$status" = 1 ] || fail "not refused: $*"
  [ "$before" = "$(fingerprint ours/disk.qcow2)" ] || fail "refused, but changed: $*"
}

in_both qemu-img create -q -f qcow2 disk.qcow2 10M
in_both qemu-io -f qcow2 -c 'write -P 1 0 2M' -c 'write -P 2 5M 100k' disk.qcow2

# --- resize
both resize disk.qcow2 20M
both resize -f qcow2 disk.qcow2 +1.5M
both resize -q --shrink disk.qcow2 -5M
both resize --preallocation=metadata disk.qcow2 +3M
same_image qcow2 disk.qcow2
both resize --preallocation full disk.qcow2 +1M
same_image qcow2 disk.qcow2
for bad in "disk.qcow2 1M" "disk.qcow2 -1M" "disk.qcow2 x" disk.qcow2 "" "disk.qcow2 +x" \
    "disk.qcow2 --shrink -1T" "disk.qcow2 100 --shrink" "none.qcow2 1M" \
    "--preallocation=some disk.qcow2 +1M"; do
  # shellcheck disable=SC2086
  refused_by_both resize $bad
done
in_both cp /dev/null disk.raw
for args in "disk.raw 3M" "disk.raw +1M" "--shrink disk.raw -1M" \
    "--preallocation=falloc disk.raw +1M" "--preallocation=full disk.raw +1M"; do
  # shellcheck disable=SC2086
  both resize -f raw $args
  same_image raw disk.raw
done
refused_by_both resize -f raw disk.raw 1M
for bad in 0 1.5 -1T; do
  before=$(stat -c %s ours/disk.raw)
  both_status resize -f raw --shrink disk.raw "$bad"
  [ "$status" = 1 ]
  [ "$before" = "$(stat -c %s ours/disk.raw)" ]
done
both resize disk.raw 9M
# What is cut off uses no space any more, neither data nor its tables.
in_both qemu-img create -q -f qcow2 -o cluster_size=128k large.qcow2 80G
writes=()
for ((i = 0; i < 40; ++i)); do
  writes+=(-c "write $((i * 2))G 4k")
done
in_both qemu-io -f qcow2 "${writes[@]}" large.qcow2
both resize --shrink large.qcow2 1M
same_image qcow2 large.qcow2
[ "$(allocated_kib ours/large.qcow2)" -le "$(($(allocated_kib theirs/large.qcow2) + 512))" ]
# The file ends where the data does, although the tables were written anew past its end.
for options in cluster_size=4k cluster_size=64k,preallocation=metadata cluster_size=2M; do
  in_both qemu-img create -q -f qcow2 -o "$options" long.qcow2 64M
  in_both qemu-io -f qcow2 -c 'write -q -P 3 0 40M' -c 'write -q -P 4 60M 2M' long.qcow2
  both resize --shrink long.qcow2 9M
  same_image qcow2 long.qcow2
  [ "$(stat -c %s ours/long.qcow2)" -le "$(($(stat -c %s theirs/long.qcow2) + (512 << 10)))" ]
  [ "$(allocated_kib ours/long.qcow2)" -le "$(($(allocated_kib theirs/long.qcow2) + 2048))" ]
done
# A file in use keeps its size.
cd ours
qemu-nbd -t --fork --pid-file=nbd.pid -f raw -k "$sockdir/raw.sock" disk.raw
helper_pids+=("$(cat nbd.pid)")
cd ..
img_refused 'is another process using the image' resize -f raw --shrink disk.raw 1M
[ "$(stat -c %s ours/disk.raw)" = 9437184 ]
kill "$(cat ours/nbd.pid)"
helper_pids=()

img_refused 'no snapshot' snapshot -d none disk.qcow2

# --- snapshot
both snapshot -c one disk.qcow2
in_both qemu-io -f qcow2 -c 'write -P 3 1M 64k' disk.qcow2
both snapshot -c two disk.qcow2
both snapshot -q -a one disk.qcow2
same_image qcow2 disk.qcow2
both snapshot -d two disk.qcow2
same_image qcow2 disk.qcow2
[ "$(qemu-img snapshot -l ours/disk.qcow2 | awk '$1 == 1 { print $2 }')" = one ]
for bad in "-a two" "-d two" "-a one -d one" "-c"; do
  # shellcheck disable=SC2086
  refused_by_both snapshot $bad disk.qcow2
done
both snapshot -d one disk.qcow2

# --- bitmap
both bitmap --add disk.qcow2 day
both bitmap --add -g 4k --disable disk.qcow2 night
in_both qemu-io -f qcow2 -c 'write -P 4 3M 64k' disk.qcow2
both bitmap --merge day disk.qcow2 night
same_image qcow2 disk.qcow2
both bitmap --clear --enable disk.qcow2 night
both bitmap --disable disk.qcow2 day
both bitmap -f qcow2 --add disk.qcow2 gone
both bitmap --remove disk.qcow2 gone
same_image qcow2 disk.qcow2
in_both cp disk.qcow2 source.qcow2
both bitmap --add --merge day -b source.qcow2 -F qcow2 disk.qcow2 copy
same_image qcow2 disk.qcow2
marked ()
{
  nbdinfo --map="qemu:dirty-bitmap:$2" -- [ qemu-nbd -r -f qcow2 -B "$2" "$1" ]
}
for name in day night copy; do
  diff <(marked theirs/disk.qcow2 $name) <(marked ours/disk.qcow2 $name)
done
marked ours/disk.qcow2 copy | grep -E ' 3145728 +65536 +1'
for bad in "disk.qcow2 new" "--add disk.qcow2 day" "--remove disk.qcow2 none" \
    "--add -g 1000 disk.qcow2 new" "--clear disk.qcow2" "--merge none disk.qcow2 day" \
    "--add --clear disk.qcow2 day" "-g 4k --clear disk.qcow2 day" \
    "-b source.qcow2 --clear disk.qcow2 day" "--add -F qcow2 disk.qcow2 new"; do
  # shellcheck disable=SC2086
  refused_by_both bitmap $bad
done
img_refused 'raw images do not support' bitmap --add -f raw disk.raw new

# The bitmaps of an image can be changed without its backing file.  Other changes are made
# without it as a whole, or not at all.
in_both qemu-img create -q -f qcow2 lost.qcow2 10M
in_both qemu-img create -q -f qcow2 -b lost.qcow2 -F qcow2 over.qcow2
in_both rm lost.qcow2
for args in --add --disable --enable "--merge day -b source.qcow2" --clear; do
  # shellcheck disable=SC2086
  both bitmap $args over.qcow2 new
  diff <(cd theirs && facts qcow2 over.qcow2) <(cd ours && facts qcow2 over.qcow2)
done
both bitmap --remove over.qcow2 new
for args in "snapshot -c one over.qcow2" "amend -o lazy_refcounts=on over.qcow2" \
    "resize over.qcow2 20M" "snapshot -d one over.qcow2" "commit over.qcow2"; do
  before=$(fingerprint ours/over.qcow2)
  # shellcheck disable=SC2086
  if (cd ours && img $args); then
    [ "$before" != "$(fingerprint ours/over.qcow2)" ] || fail "not changed: $args"
  else
    [ "$before" = "$(fingerprint ours/over.qcow2)" ] || fail "refused, but changed: $args"
  fi
done

# --- commit
in_both qemu-img create -q -f qcow2 base.qcow2 10M
in_both qemu-io -f qcow2 -c 'write -P 1 0 2M' base.qcow2
in_both qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 over.qcow2 12M
in_both qemu-io -f qcow2 -c 'write -P 7 1M 2M' -c 'write -z 0 64k' over.qcow2
both commit -d over.qcow2
same_image qcow2 base.qcow2
same_image qcow2 over.qcow2
in_both qemu-io -f qcow2 -c 'write -P 8 1M 64k' over.qcow2
both commit -q -t none over.qcow2
same_image qcow2 base.qcow2
same_image qcow2 over.qcow2
refused_by_both commit base.qcow2
refused_by_both commit none.qcow2
in_both qemu-io -f qcow2 -c 'write -P 9 5M 64k' over.qcow2
both commit -b base.qcow2 over.qcow2
same_image qcow2 base.qcow2
same_image qcow2 over.qcow2
# Into a file further down, also what the images between contain.
in_both qemu-img create -q -f qcow2 -b over.qcow2 -F qcow2 mid.qcow2
in_both qemu-img create -q -f qcow2 -b mid.qcow2 -F qcow2 top.qcow2
in_both qemu-io -f qcow2 -c 'write -P 10 2M 1M' -c 'write -z 5M 32k' mid.qcow2
in_both qemu-io -f qcow2 -c 'write -P 11 2500k 1M' -c 'write -z 1M 64k' top.qcow2
before=$(cat ours/mid.qcow2 ours/top.qcow2 | sha256sum)
for base in over.qcow2 base.qcow2; do
  both commit -b "$base" top.qcow2
  same_image qcow2 "$base"
  qemu-img compare -q "ours/$base" ours/top.qcow2
done
[ "$before" = "$(cat ours/mid.qcow2 ours/top.qcow2 | sha256sum)" ]
both_status commit -b top.qcow2 top.qcow2
[ "$status" = 1 ]
# Names in JSON.
json='json:{"driver":"qcow2","file":{"driver":"file","filename":"base.qcow2"}}'
in_both qemu-img create -q -f qcow2 -b "$json" -F qcow2 over2.qcow2
in_both qemu-img create -q -f qcow2 -b over2.qcow2 -F qcow2 top2.qcow2
in_both qemu-io -f qcow2 -c 'write -P 12 3M 64k' top2.qcow2
both commit -b "$json" top2.qcow2
same_image qcow2 base.qcow2
in_both qemu-io -f qcow2 -c 'write -P 13 3M 64k' top2.qcow2
cd ours
img commit -q -b ./base.qcow2 top2.qcow2
qemu-img compare -q base.qcow2 top2.qcow2
cd ..
rm ours/over2.qcow2 ours/top2.qcow2
img_refused 'not in the backing chain' commit -b disk.qcow2 top.qcow2
qemu-img resize -q --shrink ours/mid.qcow2 8M
before=$(cat ours/*.qcow2 | sha256sum)
img_refused 'another size.*one image after the other' commit -b base.qcow2 top.qcow2
[ "$before" = "$(cat ours/*.qcow2 | sha256sum)" ]
img_refused 'is not a size' commit -r x over.qcow2
