#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img map says of an image what qemu-img map says of it, line for line: for
# images with random mixtures of features, and for those in which offsets, holes and depths
# are less obvious.  A faulty entry is an error.  (What is compressed, only newer versions
# of qemu-img say.)
#
# Environment: SEED; SECONDS_TO_RUN: for mixtures (default 3, or 8).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"

# The same files, because of their names and holes.
rmdir ours
ln -s theirs ours
cd theirs
qemu-img create -q -f qcow2 disk.qcow2 10M
qemu-img create -q -f raw disk.raw 3M
qemu-io -f raw -c 'write -P 4 1M 64k' disk.raw
for ((i = 0; i < 10; ++i)); do
  qemu-io -f qcow2 -c "write -P $i $((RANDOM % 150))k $((RANDOM % 300))k" \
    -c "write -z $((RANDOM % 9000))k $((RANDOM % 300))k" disk.qcow2
done
qemu-img create -q -f qcow2 -b disk.qcow2 -F qcow2 over.qcow2 12M
qemu-io -f qcow2 -c "write -P 1 $((RANDOM % 9000))k 300k" over.qcow2
qemu-img create -q -f qcow2 -o cluster_size=512 -b over.qcow2 -F qcow2 top.qcow2
qemu-io -f qcow2 -c "write -P 1 $((RANDOM % 9000))k 300k" top.qcow2
qemu-img create -q -f qcow2 -b disk.raw -F raw on-raw.qcow2 12M
qemu-img create -q -f qcow2 -o data_file=data.raw data.qcow2 1M
qemu-io -f qcow2 -c 'write 64k 64k' data.qcow2
qemu-img convert -c -O qcow2 disk.qcow2 small.qcow2
truncate -s 1000000 odd.raw
printf x | dd of=odd.raw bs=1 seek=999999 conv=notrunc
qemu-img create -q -f qcow2 --object secret,id=s,data=hush \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 secret.qcow2 1M
cd ..

# same_lines: theirs and ours.
same_lines ()
{
  diff <(sed 's/, "compressed": [a-z]*//' theirs.out) \
    <(sed 's/, "compressed": [a-z]*//' ours.out)
}

# thrice COMMAND...: three times different is a difference.
#
# Space that a file system has allocated and not written is a hole for lseek until the
# kernel reads it ahead, and again when it drops that from memory.  So what one program
# reads can change what the next one is told.
thrice ()
{
  "$@" || "$@" || "$@"
}

same ()
{
  both_status map "$@" && same_lines
}

# as_json ARGUMENT...: it is the same in JSON; and mapped, as text, too.
as_json ()
{
  thrice same --output=json "$@"
  [ "$status" = 0 ]
}

mapped ()
{
  as_json "$@"
  thrice same "$@"
}

for image in disk.qcow2 disk.raw over.qcow2 top.qcow2 on-raw.qcow2 data.qcow2 small.qcow2 \
    odd.raw; do
  mapped "$image"
  for ((i = 0; i < 2; ++i)); do
    mapped -s "$((RANDOM % 2000 * 512))" -l "$((1 + RANDOM % 9000))k" "$image"
    mapped --start-offset=64k -U "$image"
  done
done
mapped -s 20M disk.qcow2
mapped -s 3M disk.raw
mapped -s 1M -l 0 disk.qcow2
for bad in none.qcow2 "" "-f qcow2 disk.raw" "-s x disk.qcow2" "--output=x disk.qcow2"; do
  # shellcheck disable=SC2086
  both_status map $bad
  [ "$status" = 1 ]
done
# No passphrase is needed (it is with qemu-img).
img map --output=json ours/secret.qcow2 | grep '"length": 1048576'

# --- mixtures ---

FEATURES="luks aes extended_l2 data_file compress"
if "$NBDKIT" "$PLUGIN" --dump-plugin | grep '^qcow2_zstd=yes$' > /dev/null; then
  FEATURES+=" zstd"
fi
export FEATURES

# same_mixture NODE: QEMU opens the image as NODE says.
same_mixture ()
{
  qemu-img map --output=json --object "secret,id=s,data=open sesame" "$1" > theirs.out &&
    img map --output=json mixture/top.qcow2 > ours.out && same_lines
}

seconds=3
if long_suite; then seconds=8; fi
end=$((SECONDS + ${SECONDS_TO_RUN:-$seconds})) mixtures=0
until [ "$SECONDS" -ge "$end" ]; do
  rm -rf mixture
  mkdir mixture
  SEED=$RANDOM$RANDOM "$python" "$srcdir/lib/mixture.py" make "$tmp/mixture" mixture/spec
  echo "MIXTURE $("$python" "$srcdir/lib/mixture.py" show mixture/spec line)"
  thrice same_mixture "$("$python" "$srcdir/lib/mixture.py" show "$tmp/mixture/spec" node)"
  mixtures=$((mixtures + 1))
done
echo "$mixtures mixtures"

# --- single features ---

a=theirs/a.qcow2

for size in 0 512 20972032; do
  make_image $a $size
  as_json a.qcow2
done

for options in compat=v2 compat=v3 cluster_size=512 cluster_size=2M extended_l2=on \
               extended_l2=on,cluster_size=1M; do
  make_image $a 20972032 "$options"
  io $a 'write -P 1 0 100k' 'write -P 2 1M 1' 'write -c -P 3 6M 2M' \
    'write -P 4 20971519 513' 'write -P 5 10M 1M'
  as_json a.qcow2
  io $a 'write -z 4M 512k' 'write -z -u 7M 512k' 'write -z 15M 1M' \
    'discard 5M 128k' 'discard 10M 256k'
  as_json a.qcow2
  qemu-img snapshot -c s $a
  io $a 'write -P 5 5500k 70k' 'write -z 1 1'
  as_json a.qcow2
done

# (QEMU looks for data files in the current directory.)
in_theirs () { (cd theirs && "$@"); }
# Clusters in use that are holes, with and without subclusters, in a data file.
for options in preallocation=metadata preallocation=falloc preallocation=full \
               preallocation=metadata,extended_l2=on \
               data_file=d,preallocation=metadata data_file=d data_file=e,data_file_raw=on \
               data_file=d,extended_l2=on data_file=d,cluster_size=4k; do
  rm -f theirs/[de]
  in_theirs make_image a.qcow2 8M "$options"
  as_json a.qcow2
  in_theirs io a.qcow2 'write -P 1 1M 200k' 'write -z 1100k 64k' 'write -z -u 2M 64k' \
    'write -P 2 2050k 2k' 'discard 1M 64k'
  as_json a.qcow2
done

# Chains: raw files that end anywhere, shorter and longer layers, subclusters.
for bytes in 0 1 1000 1048576 1048577 3145728; do
  random_file theirs/base.raw 700000
  truncate -s $bytes theirs/base.raw
  if [ $bytes -gt 2000000 ]; then fallocate -p -o 65536 -l 131072 theirs/base.raw; fi
  for options in compat=v2 extended_l2=on extended_l2=on,preallocation=metadata; do
    make_image $a 8M "backing_file=base.raw,backing_fmt=raw,$options"
    as_json a.qcow2
    io $a 'write -P 1 500k 20k' 'write -P 2 4M 3k' 'write -z 600k 10k' \
      'write -z 3072k 3k' 'discard 704k 64k' 'write -P 3 704k 6k'
    as_json a.qcow2
    make_image theirs/b.qcow2 10M backing_file=a.qcow2,backing_fmt=qcow2,cluster_size=16k
    io theirs/b.qcow2 'write -P 1 576k 64k' 'write -z 768k 64k' 'discard 512k 64k'
    as_json b.qcow2
    make_image theirs/c.qcow2 2097664 backing_file=b.qcow2,backing_fmt=qcow2
    as_json c.qcow2
  done
done

# --- errors ---

make_image $a 10M
io $a 'write -P 1 0 1M' 'write -P 1 3M 64k'
header_patch $a l2+80 Q 0x8000000000050200
img_refused 'entry 0x8000000000050200 for guest offset 655360 is invalid' map a.qcow2
qemu-img create -q -u -f qcow2 -b missing -F raw $a 10M
both_status map a.qcow2
[ "$status" = 1 ]
