#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img measure tells the same sizes of a new image as qemu-img measure, in words
# and in JSON; where it does not, the files that are made show that ours are right.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"

# The same files, because of their holes.
rmdir ours
ln -s theirs ours
secret=(--object secret,id=s,data=hush)
luks=encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10
cd theirs
qemu-img create -q -f qcow2 disk.qcow2 10M
scribble qcow2 disk.qcow2 10
qemu-img snapshot -c one disk.qcow2
scribble qcow2 disk.qcow2 10
qemu-img bitmap --add disk.qcow2 day
qemu-img bitmap --add --disable -g 4k disk.qcow2 "the night"
qemu-img create -q -f qcow2 -o cluster_size=512 small.qcow2 3000000
scribble qcow2 small.qcow2 2
qemu-img bitmap --add -g 512 small.qcow2 all
qemu-img create -q -f qcow2 -b disk.qcow2 -F qcow2 over.qcow2 20M
scribble qcow2 over.qcow2 20
truncate -s 9000000 disk.raw
printf x | dd of=disk.raw bs=1 seek=7000001 conv=notrunc
qemu-img create -q -f qcow2 -b disk.raw -F raw on-raw.qcow2 11M
qemu-img create -q -f qcow2 -o compat=0.10 old.qcow2 5000000
scribble qcow2 old.qcow2 4
qemu-img create -q -f qcow2 -o extended_l2=on extended.qcow2 5M
scribble qcow2 extended.qcow2 5
qemu-img create -q -f qcow2 -o data_file=data.raw data.qcow2 5M
scribble qcow2 data.qcow2 5
qemu-img convert -c -O qcow2 disk.qcow2 compressed.qcow2
qemu-img create -q -f qcow2 -o preallocation=metadata preallocated.qcow2 5M
qemu-img create -q -f qcow2 "${secret[@]}" -o "$luks" secret.qcow2 1M
qemu-img create -q -f qcow2 empty.qcow2 0
touch empty.raw
cd ..

# measured ARGUMENT...: as theirs, and if it is possible there is more to be said in JSON.
measured ()
{
  both measure "$@"
  [ "$status" = 0 ] || return 0
  both_status measure --output=json "$@"
  echo "$*" >> asked
  cat theirs.out >> theirs.json
  cat ours.out >> ours.json
}

# --- an empty disk

for size in 0 1 1000 65537 3G 7T 2P 2251799813685249 1E 7E; do
  measured --size "$size"
  measured --size "$size" -O qcow2
  for options in cluster_size=512 cluster_size=4k cluster_size=2M refcount_bits=64 \
      extended_l2=on backing_file=x backing_file=x,backing_fmt=raw data_file=x \
      preallocation=full compat=0.10 size=5M cluster_size=8k,cluster_size=4k; do
    measured --size "$size" -O qcow2 -o "$options"
  done
  measured --size "$size" -O qcow2 "${secret[@]}" -o "$luks"
done
# Sizes are written in the same ways.
for size in 1. 1.M 1.0 0.1k .5M 1.5 1.5b 1e3k 3.14159M 7.9E 8E 0x400k 0x400b 0x1.8M 0x 0xE \
    " 1M" "1M " +1k +-1k 08 1..5M 1Mb 1_0 x ""; do
  both measure --size "$size"
done

# --- an image

for image in disk.qcow2 small.qcow2 over.qcow2 disk.raw on-raw.qcow2 old.qcow2 \
    extended.qcow2 data.qcow2 compressed.qcow2 preallocated.qcow2 empty.qcow2 empty.raw; do
  measured "$image"
  measured -U -O qcow2 "$image"
  for options in preallocation=falloc preallocation=metadata,extended_l2=on compat=0.10 \
      backing_file=x,backing_fmt=qcow2 lazy_refcounts=on,compression_type=zstd; do
    measured -O qcow2 -o "$options" "$image"
  done
  for ((i = 0; i < 3; ++i)); do
    any cluster 512 1k 16k 64k 2M
    any bits 1 8 16 64
    measured -O qcow2 -o "cluster_size=$cluster" -o "refcount_bits=$bits" "$image"
  done
done
measured -O qcow2 "${secret[@]}" --image-opts \
  driver=qcow2,file.filename=secret.qcow2,encrypt.key-secret=s
measured -O qcow2 -f raw disk.qcow2
for snapshot in one 1 snapshot.id=1 snapshot.name=one; do
  measured -O qcow2 -l "$snapshot" disk.qcow2
done

"$python" - <<'EOF'
import json


def values(name):
    with open(name) as f:
        text = f.read().lstrip()
    while text:
        value, end = json.JSONDecoder().raw_decode(text)
        yield value
        text = text[end:].lstrip()


with open("asked") as f:
    asked = f.read().splitlines()
theirs, ours = (list(values(name)) for name in ("theirs.json", "ours.json"))
assert len(asked) == len(theirs) == len(ours) > 100
for row in zip(asked, theirs, ours):
    assert row[1] == row[2], row
EOF

# What is copied needs no more.
required=$(img measure -O qcow2 --output=json ours/over.qcow2 | "$python" -c '
import json, sys
print(json.load(sys.stdin)["required"])')
qemu-img convert -O qcow2 ours/over.qcow2 copy.qcow2
[ "$(stat -c %s copy.qcow2)" -le "$required" ]

# --- ours are right

# The LUKS header has 2 MB: 8 KB of refcounts with small clusters.
small="$luks,cluster_size=512"
img create -q -f qcow2 "${secret[@]}" -o "$small,preallocation=metadata" full.qcow2 10M
img measure -O qcow2 "${secret[@]}" -o "$small" --size 10M |
  grep -x "fully allocated size: $(stat -c %s full.qcow2)"
# A snapshot's disk has a size of its own.
qemu-img resize -q theirs/disk.qcow2 12M
img measure -l one ours/disk.qcow2 | grep -x "required size: $((10 << 20))"

# --- what is refused

for bad in "" "--size 1G disk.qcow2" "-O qcow2 none.qcow2" "--size x -O qcow2" \
    "-O nothing --size 1G" "-O qcow2 -l none disk.qcow2" "-O qcow2 -o no=1 --size 1G" \
    "-l one disk.raw" "--size 1G -l one" "--size 1G -f raw" "--size 1G --image-opts" \
    "disk.qcow2 disk.raw" "-O qcow2 -o cluster_size=0 --size 1G" \
    "-O qcow2 -o cluster_size=3 disk.qcow2" "-O qcow2 -o refcount_bits=3 --size 1G" \
    "-O qcow2 -o encrypt.format=luks --size 1G" "-O raw -o cluster_size=4k --size 1G"; do
  # shellcheck disable=SC2086
  both_status measure $bad
  [ "$status" = 1 ]
done
img_refused 'lazy refcounts require version 3' measure -O qcow2 --size 1G \
  -o lazy_refcounts=on,compat=0.10
