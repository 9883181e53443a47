#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img convert and dd copy what qemu-img copies, whatever the formats, options,
# snapshots, bitmaps and backing files are, and into what exists, NBD servers and pipes.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"


converted ()
{
  both convert "$@"
  local format="${*: -1}"
  same_image "${format##*.}" "$format"
}

in_both qemu-img create -q -f qcow2 disk.qcow2 10M
in_both qemu-io -f qcow2 -c 'write -P 1 0 2M' -c 'write -P 2 5M 100k' \
  -c 'write -P 9 8000k 1M' disk.qcow2
in_both qemu-img snapshot -c one disk.qcow2
in_both qemu-io -f qcow2 -c 'write -P 3 1M 64k' -c 'write -z 5M 10k' disk.qcow2
in_both qemu-img create -q -f qcow2 -b disk.qcow2 -F qcow2 over.qcow2 12M
in_both qemu-io -f qcow2 -c 'write -P 4 3M 64k' -c 'write -z 0 64k' over.qcow2
head -c 3000001 /dev/urandom > theirs/odd.raw
cp theirs/odd.raw ours

converted disk.qcow2 disk.raw
converted disk.raw raw.raw
converted -O qcow2 disk.raw new.qcow2
converted -f qcow2 -O qcow2 -W -m 4 over.qcow2 flat.qcow2
converted -O qcow2 odd.raw odd.qcow2
converted odd.raw odd2.raw
converted -l one disk.qcow2 one.raw
converted -l snapshot.name=one -O qcow2 disk.qcow2 one.qcow2
converted -S 0 disk.qcow2 full.raw
[ "$(allocated_kib ours/full.raw)" -ge 10240 ]
converted -S 64k -O qcow2 disk.raw sparse.qcow2
converted -S 100k disk.raw sparse.raw
for size in 1 1000 17M; do both_status convert -S $size disk.raw sparse.raw; done
[ "$status" = 1 ]
converted disk.raw odd.raw disk.qcow2 all.raw
converted -O qcow2 odd.raw over.qcow2 all.qcow2
# A snapshot whose name is the id of another one.
in_both qemu-img create -q -f qcow2 named.qcow2 1M
for name in 2 1; do
  in_both qemu-io -f qcow2 -c "write -P 1$name 0 64k" named.qcow2
  in_both qemu-img snapshot -c $name named.qcow2
done
for which in snapshot.id=1 snapshot.name=1 snapshot.id=2; do
  converted -l $which named.qcow2 named.raw
done
both_status convert -l snapshot.id=3 named.qcow2 named.raw
[ "$status" = 1 ]
for command in "convert -l 1 named.qcow2 named.raw" "measure -l 1 -O raw named.qcow2" \
    "map --snapshot 1 named.qcow2" "snapshot -a 1 named.qcow2"; do
  # shellcheck disable=SC2086
  img_refused '"1" is the name of one snapshot .* snapshot.id=1 the other' $command
done
# What exists is replaced.
converted -O qcow2 odd.raw all.qcow2
# Zeros take no space, also if they are stored as data; holes are not read.
in_both qemu-img create -q -f qcow2 zeros.qcow2 8M
in_both qemu-io -f qcow2 -c 'write -P 0 0 8M' -c 'write -P 1 4M 4k' zeros.qcow2
converted zeros.qcow2 zeros.raw
[ "$(allocated_kib ours/zeros.raw)" -le 64 ]
truncate -s 1T ours/large.raw
dd if=ours/disk.raw of=ours/large.raw bs=1M count=2 seek=700000 conv=notrunc status=none
for options in "" -c; do
  # shellcheck disable=SC2086
  "${soon[@]}" "$IMG" convert $options -O qcow2 -o cluster_size=2M ours/large.raw \
    ours/large.qcow2
  qemu-img compare -q -f raw -F qcow2 ours/large.raw ours/large.qcow2
  [ "$(allocated_kib ours/large.qcow2)" -le 16384 ]
done

for options in cluster_size=512 cluster_size=2M compat=0.10 extended_l2=on \
    preallocation=metadata lazy_refcounts=on,refcount_bits=8; do
  converted -O qcow2 -o "$options" disk.qcow2 options.qcow2
done
for options in compression_type=zlib compression_type=zstd cluster_size=4k cluster_size=2M; do
  converted -c -O qcow2 -o "$options" disk.raw small.qcow2
  ours=$(allocated_kib ours/small.qcow2) theirs=$(allocated_kib theirs/small.qcow2)
  [ "$ours" -le $((theirs + theirs / 4 + 256)) ] || fail "$ours KiB, not $theirs"
done

# Compressed are also the clusters in which one image ends and the next one begins.
head -c 100001 /dev/zero | tr '\0' y > theirs/yes.raw
cp theirs/yes.raw ours
converted -c -O qcow2 yes.raw disk.qcow2 yes.raw over.qcow2 joint.qcow2
compressed () { qemu-img check --output=json "$1/joint.qcow2" | grep compressed-clusters; }
diff <(compressed theirs) <(compressed ours)
# With -S 0, everything is data, with -c compressed data.
holes () { qemu-img map --output=json "$1" | grep -v '"zero": false, "data": true'; }
for options in "" -c "-c -o compat=0.10" "-c -o compression_type=zstd,cluster_size=4k" \
    "-c -m 1"; do
  for sources in disk.qcow2 over.qcow2 disk.raw "odd.raw disk.qcow2"; do
    # shellcheck disable=SC2086
    converted $options -S 0 -O qcow2 $sources joint.qcow2
    if holes ours/joint.qcow2; then fail "not allocated"; fi
    diff <(compressed theirs) <(compressed ours)
  done
done
(cd ours && img convert -S 0 -c -O qcow2 disk.qcow2 -) > ours/joint.qcow2
if holes ours/joint.qcow2; then fail "not allocated"; fi
# What has no effect, or not on what is copied.
converted -r 1G -O qcow2 disk.qcow2 options.qcow2
converted -r 0 -C disk.qcow2 options.raw
converted -O qcow2 -o size=1M disk.qcow2 options.qcow2
converted --salvage -O qcow2 over.qcow2 options.qcow2
converted --salvage -c -O qcow2 yes.raw disk.qcow2 options.qcow2
converted --salvage odd.raw options.raw

# Into what exists.
in_both qemu-img create -q -f qcow2 there.qcow2 20M
in_both qemu-io -f qcow2 -c 'write -P 6 0 20M' there.qcow2
converted -n -O qcow2 disk.qcow2 there.qcow2
in_both truncate -s 20M there.raw
converted -n disk.qcow2 there.raw
in_both qemu-img create -q -f qcow2 empty.qcow2 20M
converted -n --target-is-zero -O qcow2 disk.qcow2 empty.qcow2

# Over a backing file: only what is not in the backing file.
in_both qemu-img convert -O qcow2 disk.qcow2 base.qcow2
converted -O qcow2 -B base.qcow2 -F qcow2 over.qcow2 over2.qcow2
[ "$(allocated_kib ours/over2.qcow2)" -lt 1024 ]
converted -O qcow2 -o backing_file=base.qcow2,backing_fmt=qcow2 over.qcow2 over2.qcow2
[ "$(allocated_kib ours/over2.qcow2)" -lt 1024 ]

# Bitmaps.
in_both qemu-img bitmap --add -g 4k over.qcow2 day
in_both qemu-img bitmap --add --disable over.qcow2 night
in_both qemu-io -f qcow2 -c 'write -P 4 6M 4k' over.qcow2
converted -O qcow2 --bitmaps over.qcow2 bitmaps.qcow2
marked ()
{
  nbdinfo --map=qemu:dirty-bitmap:day -- [ qemu-nbd -r -f qcow2 -B day "$1/bitmaps.qcow2" ]
}
diff <(marked theirs) <(marked ours)

# Encryption: from one passphrase to another.
img create -q -f qcow2 --object secret,id=s,data=hush \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 ours/luks.qcow2 1M
img convert -O qcow2 --object secret,id=new,data=other \
  -o encrypt.format=luks,encrypt.key-secret=new,encrypt.iter-time=10 \
  ours/odd.raw ours/locked.qcow2
img convert --object secret,id=s,data=other ours/locked.qcow2 ours/unlocked.raw
cmp -n 3000001 ours/odd.raw ours/unlocked.raw

# Streams.
img convert ours/over.qcow2 - > stream
qemu-img compare -q -f raw -F qcow2 stream ours/over.qcow2
img convert -f raw -O qcow2 - ours/in.qcow2 < stream
same_disk () { qemu-img compare -q -f qcow2 -F raw "$1" stream; }
same_disk ours/in.qcow2
# shellcheck disable=SC2002
cat stream | img convert -f raw -O qcow2 - ours/in2.qcow2
same_disk ours/in2.qcow2
(
  ulimit -f 200
  # shellcheck disable=SC2002
  if cat stream | img convert -f raw -O qcow2 - ours/in3.qcow2 2> err; then fail "no limit"; fi
)
grep "nbdkit-qcow2-img: stdin: cannot copy it to $TMPDIR: File too large; .*TMPDIR" err
(
  ulimit -f 200
  if img convert -S 0 -O qcow2 ours/over.qcow2 - 2> err | cat > full; then fail "no limit"; fi
)
grep "stdout: the image is made in $TMPDIR first; the variable TMPDIR names another" err
nothing_left
# shellcheck disable=SC2002
cat ours/in.qcow2 | img convert -O qcow2 -c - - | cat > ours/out.qcow2
same_disk ours/out.qcow2
check_clean ours/out.qcow2
img convert -O qcow2 ours/over.qcow2 - >> ours/appended.qcow2
same_disk ours/appended.qcow2
cp stream removed
exec 7< removed
rm removed
img convert -f raw -O qcow2 - ours/in3.qcow2 <&7
exec 7<&-
same_disk ours/in3.qcow2
img convert -c -O qcow2 ours/over.qcow2 - | head -c 1000 > beginning || :
nothing_left
for format in raw qcow2; do
  # shellcheck disable=SC2030
  ({ set +x; } 2>&-; set +o pipefail
   img convert -O "$format" ours/over.qcow2 - 2> err | head -c 1000 > beginning)
  [ ! -s err ] || fail "said something"
done
nothing_left
# Closed descriptors are not given to images.
img convert ours/over.qcow2 ours/closed.raw <&- >&- 2>&-
cmp stream ours/closed.raw
mkfifo ours/fifo
img_refused 'not a regular file or block device' convert disk.qcow2 fifo
img_refused 'not a regular file or block device' convert disk.qcow2 /dev/null

# NBD servers.
qemu-img create -q -f raw far.raw 12M
qemu-nbd -t --fork --pid-file=far.pid -e 4 -f raw -k "$sockdir/far.sock" far.raw
helper_pids+=("$(cat far.pid)")
far="nbd+unix:///?socket=$sockdir/far.sock"
img convert ours/over.qcow2 "$far"
cmp far.raw stream
img convert -f raw -O qcow2 "$far" ours/near.qcow2
same_disk ours/near.qcow2
img compare -q "$far" ours/near.qcow2
img dd bs=1M count=3 if=ours/over.qcow2 of="$far"
cmp -n 3145728 far.raw stream
img convert -O qcow2 ours/odd.raw "$far"
img convert -f qcow2 "$far" ours/back.raw
cmp -n 3000001 ours/odd.raw ours/back.raw

dd if=ours/disk.qcow2 of=far.raw conv=notrunc status=none
img convert -f qcow2 -l one "$far" ours/back.raw
cmp ours/one.raw ours/back.raw

# One that admits one client, once.
for options in "-O raw" "-O raw --salvage" "-O qcow2"; do
  rm -f once.raw
  truncate -s 20M once.raw
  [ "$options" != "-O qcow2" ] || qemu-img create -q -f qcow2 -o preallocation=metadata once.raw 12M
  qemu-nbd --fork --pid-file=once.pid -f raw -k "$sockdir/once.sock" once.raw
  helper_pids+=("$(cat once.pid)")
  # shellcheck disable=SC2086
  img convert -n $options ours/over.qcow2 "nbd+unix:///?socket=$sockdir/once.sock"
  read -r _ format _ <<< "$options"
  # Its client has left, so it ends.
  while kill -0 "$(cat once.pid)" 2>/dev/null; do sleep 0.02; done
  qemu-img compare -q -f "$format" -F raw once.raw stream
done

# What cannot be read becomes zeros.  (qemu-img agrees, after thousands of reads.)
"$NBDKIT" -f -U "$sockdir/bad.sock" -P bad.pid eval get_size='echo 4M' pread='
  if [ $4 -lt 1052672 ] && [ $(($4 + $3)) -gt 1048576 ]; then echo EIO bad >&2; exit 1; fi
  head -c $3 /dev/zero | tr "\0" a' &
helper_pids+=($!)
await -p $! test -s bad.pid
bad="nbd+unix:///?socket=$sockdir/bad.sock"
head -c 4M /dev/zero | tr '\0' a > expected
dd if=/dev/zero of=expected bs=4k seek=256 count=1 conv=notrunc status=none
for options in "-O raw" "-O qcow2" "-O qcow2 -c" "-O raw -S 0"; do
  # shellcheck disable=SC2086
  img convert -f raw --salvage $options "$bad" ours/salvaged 2> err
  grep 'offset 1048576: 4096 bytes cannot be read' err
  [ "$(grep -c warning err)" = 1 ]
  read -r _ format _ <<< "$options"
  qemu-img compare -q -f raw -F "$format" expected ours/salvaged
done
img_refused 'cannot read .* Input/output error' convert -f raw "$bad" x.raw

# --- dd
for ((i = 0; i < 4; ++i)); do
  in_both rm -f part.raw part.qcow2
  any size 512 4k 1M 1000
  args=(bs="$size")
  if [ "$((RANDOM % 2))" = 0 ]; then args+=(skip="$((RANDOM % 3))"); fi
  args+=(count="$((3 + RANDOM % 20))")
  both dd "${args[@]}" if=disk.qcow2 of=part.raw
  same_image raw part.raw
  both dd -f qcow2 -O qcow2 "${args[@]}" if=over.qcow2 of=part.qcow2
  same_image qcow2 part.qcow2
done
for bad in "if=disk.qcow2" "of=x.raw" "bs=0 if=disk.qcow2 of=x.raw" "x if=disk.qcow2 of=x.raw" \
    "if=none of=x.raw"; do
  # shellcheck disable=SC2086
  both_status dd $bad
  [ "$status" = 1 ]
  [ ! -e ours/x.raw ]
done

# Nothing that is read is replaced.
before=$(cat ours/disk.qcow2 ours/over.qcow2 | sha256sum)
for args in "if=over.qcow2 of=disk.qcow2" "if=over.qcow2 of=over.qcow2" \
    "if=over.qcow2 of=disk.qcow2 count=0"; do
  # shellcheck disable=SC2086
  both_status dd $args
  [ "$status" = 1 ]
done
[ "$before" = "$(cat ours/disk.qcow2 ours/over.qcow2 | sha256sum)" ]

# --- What is refused leaves nothing, and what exists as it is.
cp ours/in.qcow2 ours/kept.qcow2
cp ours/in.qcow2 theirs/kept.qcow2
for bad in "-t no disk.qcow2 kept.qcow2" "-T no disk.qcow2 kept.qcow2" \
    "none.qcow2 kept.qcow2" "-O qcow2 -o no=1 disk.qcow2 kept.qcow2" disk.qcow2 "" \
    "-c disk.qcow2 kept.qcow2" \
    "-n -O qcow2 disk.qcow2 none.qcow2" "-l none -O qcow2 disk.qcow2 kept.qcow2" \
    "-O qcow2 -B none.qcow2 -F qcow2 over.qcow2 kept.qcow2" \
    "-m 0 -O qcow2 disk.qcow2 kept.qcow2" "-m 17 -O qcow2 disk.qcow2 kept.qcow2" \
    "-S x -O qcow2 disk.qcow2 kept.qcow2" \
    "--target-is-zero -O qcow2 disk.qcow2 kept.qcow2" "-l one disk.qcow2 over.qcow2 x.raw" \
    "-O qcow2 -f qcow2 odd.raw kept.qcow2" "-n -O raw disk.qcow2 odd.raw" \
    "-F raw disk.qcow2 kept.qcow2" "-F raw -O qcow2 disk.qcow2 kept.qcow2" \
    "-O qcow2 -o backing_fmt=raw disk.qcow2 kept.qcow2" \
    "-O qcow2 -o size=x disk.qcow2 kept.qcow2" \
    "-C -S 4k -O qcow2 disk.qcow2 kept.qcow2" "-C -c -O qcow2 disk.qcow2 kept.qcow2" \
    "-C --salvage -O qcow2 disk.qcow2 kept.qcow2" "-r x -O qcow2 disk.qcow2 kept.qcow2" \
    "-O raw -o backing_file=base.qcow2 disk.qcow2 kept.qcow2"; do
  # shellcheck disable=SC2086
  both_status convert $bad
  [ "$status" = 1 ]
  cmp ours/in.qcow2 ours/kept.qcow2
done
[ ! -e ours/x.raw ]
# The reason is that of the server that has one, not that the other end is gone.
head -c 8M /dev/urandom > ours/random.raw
for args in "convert -O qcow2 random.raw x.qcow2" "dd if=random.raw of=x.raw" \
    "dd -O qcow2 if=random.raw of=x.qcow2"; do
  # shellcheck disable=SC2086
  (ulimit -f 2048; img_refused 'File too large|no space is left' $args)
done
rm ours/random.raw
qemu-io -f qcow2 -c 'write -P 1 0 64k' ours/zeros.qcow2
header_patch ours/zeros.qcow2 $((0x40000)) Q $((0x8000000000000000 | 0x50200))
img_refused 'L2 entry' convert zeros.qcow2 x.raw
[ ! -e ours/x.raw ]
img_refused "vmdk" convert -O vmdk disk.qcow2 x.vmdk
img_refused 'target-image-opts' convert --target-image-opts disk.qcow2 x.raw
