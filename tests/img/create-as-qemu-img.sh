#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img create does and prints what qemu-img create does and prints, with all
# options, sizes and formats; what exists is replaced, unless a program uses it; and what
# cannot be created leaves nothing behind.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"


both create -f qcow2 plain.qcow2 1G
same_image qcow2 plain.qcow2
for size in 1 1000 1.5M 0x10000 1T +0 +3M; do
  both create -f qcow2 size.qcow2 "$size"
  same_image qcow2 size.qcow2
  both create size.raw "$size"
  same_image raw size.raw
done
both create -f qcow2 -q quiet.qcow2 1M
both create -f qcow2 -o size=3M size.qcow2
same_image qcow2 size.qcow2
both create -f raw -o preallocation=falloc falloc.raw 1M
[ "$(allocated_kib ours/falloc.raw)" -ge 1024 ]
both create -f raw -o preallocation=full full.raw 1M
[ "$(allocated_kib ours/full.raw)" -ge 1024 ]

for options in compat=0.10 compat=v2 compat=v3 cluster_size=512 cluster_size=2M \
    cluster_size=4k,refcount_bits=1 refcount_bits=64 lazy_refcounts=on extended_l2=on \
    compression_type=zstd preallocation=metadata preallocation=falloc preallocation=full \
    preallocation=off extended_l2=yes,preallocation=metadata; do
  both create -f qcow2 -o "$options" options.qcow2 5M
  same_image qcow2 options.qcow2
done
for options in "" cluster_size=4k, ,cluster_size=4k lazy_refcounts=on,,, compat=v3,,; do
  both_status create -f qcow2 -o "$options" list.qcow2 1M
  [ "$status" = 1 ]
done
both create -f qcow2 -o data_file=data.raw,data_file_raw=on data.qcow2 1M
diff <(cd theirs && facts qcow2 data.qcow2) <(cd ours && facts qcow2 data.qcow2)
[ "$(stat -c %s ours/data.raw)" = 1048576 ]

# Random ones, given together or one by one.
for ((i = 0; i < 4; ++i)); do
  any cluster 512 1k 16k 64k 256k
  any bits 8 16 32
  any lazy on off
  options=(-o "cluster_size=$cluster" -o "refcount_bits=$bits" -o "lazy_refcounts=$lazy")
  both create "${options[@]}" -f qcow2 random.qcow2 "$((RANDOM % 5000))k"
  same_image qcow2 random.qcow2
done

# Backing files.
in_both mkdir sub
in_both qemu-img create -q -f qcow2 sub/base.qcow2 3M
in_both qemu-io -f qcow2 -c 'write -P 5 1M 1M' sub/base.qcow2
in_both qemu-img create -q -f raw base.raw 2M
both create -f qcow2 -b base.qcow2 -F qcow2 sub/over.qcow2
same_image qcow2 sub/over.qcow2
both create -f qcow2 -b base.raw -F raw over.qcow2 7M
same_image qcow2 over.qcow2
both create -f qcow2 -o backing_file=base.raw,backing_fmt=raw over2.qcow2
same_image qcow2 over2.qcow2
both create -f qcow2 -u -b missing.qcow2 -F qcow2 over3.qcow2 3M
diff <(cd theirs && facts qcow2 over3.qcow2) <(cd ours && facts qcow2 over3.qcow2)
both create -f qcow2 -u -b base.raw -F raw over3.qcow2 3M
same_image qcow2 over3.qcow2
both_status create -f qcow2 -u -b missing.qcow2 -F qcow2 over3.qcow2
[ "$status" = 1 ]
both_status create -f qcow2 -b base.raw over3.qcow2
[ "$status" = 1 ]

# No file of the image's own backing chain is replaced.
before=$(fingerprint ours/sub/base.qcow2)
both_status create -f qcow2 -b base.qcow2 -F qcow2 base.qcow2
[ "$status" = 1 ]
cd ours/sub
ln -s base.qcow2 link
cd ../..
for name in base.qcow2 ./base.qcow2 link over.qcow2; do
  img_refused 'read and written at the same time' create -f qcow2 -b "$name" -F qcow2 sub/base.qcow2
  img_refused 'read and written at the same time' create -u -f qcow2 -b "$name" -F qcow2 \
    sub/link 1M
  img_refused 'read and written at the same time' convert -O qcow2 -B "$name" -F qcow2 over2.qcow2 \
    sub/base.qcow2
done
[ "$before" = "$(fingerprint ours/sub/base.qcow2)" ]
rm ours/sub/link

# Encryption.
both create -f qcow2 --object secret,id=s,data=hush \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 secret.qcow2 1M
# Over it with another passphrase, or none.
both create -f qcow2 --object secret,id=s,data=hush --object secret,id=other,data=other \
  -o encrypt.format=luks,encrypt.key-secret=other,encrypt.iter-time=10 -b secret.qcow2 -F qcow2 \
  over-secret.qcow2
both create -f qcow2 -b secret.qcow2 -F qcow2 over-secret2.qcow2
for name in over-secret.qcow2 over-secret2.qcow2; do
  diff <(cd theirs && facts qcow2 "$name") <(cd ours && facts qcow2 "$name")
done
cd ours
qemu-io --object secret,id=s,data=hush -c 'write -P 3 0 64k' --image-opts \
  driver=qcow2,file.filename=secret.qcow2,encrypt.key-secret=s
for opts in '--image-opts driver=qcow2,file.driver=file,file.filename=secret.qcow2,encrypt.key-secret=s' \
    secret.qcow2; do
  # shellcheck disable=SC2086
  img check --object secret,id=s,data=hush $opts
done
cd ..
img_refused 'secret,id' convert secret.qcow2 x.raw
img_refused 'passphrase|wrong' convert --object secret,id=s,data=other secret.qcow2 x.raw
printf 'hush' > ours/hush
img check --object secret,id=s,file=ours/hush -q ours/secret.qcow2
printf 'aHVzaA==' > ours/hush64
img check --object secret,id=s,format=base64,file=ours/hush64 -q ours/secret.qcow2
img_refused 'not base64' check --object secret,id=s,format=base64,data=aHVza secret.qcow2
head -c 64k /dev/zero | tr '\0' x > ours/long
img_refused 'longer than' check --object secret,id=s,file=long secret.qcow2

# What cannot be created leaves what existed, or nothing.
before=$(fingerprint ours/plain.qcow2)
for bad in cluster_size=1000 cluster_size=4M refcount_bits=3 compat=2 cluster_size=x \
    lazy_refcounts=maybe no_such=1 extended_l2=on,cluster_size=4k \
    compat=0.10,lazy_refcounts=on encrypt.format=luks encrypt.key-secret=s; do
  both_status create -f qcow2 -o "$bad" plain.qcow2 1M
  [ "$status" = 1 ]
  both_status create -f qcow2 -o "$bad" new.qcow2 1M
  [ ! -e ours/new.qcow2 ]
done
for bad in "-f qcow2" "-f qcow2 plain.qcow2" "-f qcow2 plain.qcow2 x" \
    "-f nothing plain.qcow2 1M" "-f qcow2 plain.qcow2 1M 2M" "-f qcow2 plain.qcow2 -1" \
    "-f qcow2 -b none.qcow2 -F qcow2 plain.qcow2" "-f qcow2 none/plain.qcow2 1M" \
    "-f qcow2 -b base.raw -F vmdk plain.qcow2" "-f raw -o cluster_size=64k plain.qcow2 1M" \
    "-f raw -b base.raw -F raw plain.qcow2" "-f qcow2 -o size=10M plain.qcow2 20M" \
    "-f raw -o size=10M plain.qcow2 10M" "-f qcow2 -F raw plain.qcow2 1M" \
    "-f qcow2 -o backing_fmt=qcow2 plain.qcow2 1M"; do
  # shellcheck disable=SC2086
  both_status create $bad
  [ "$status" = 1 ]
done
[ "$before" = "$(fingerprint ours/plain.qcow2)" ]

# Messages have the name that the user gave.
(
  ulimit -f 200
  img_refused '^nbdkit-qcow2-img: .*/plain.qcow2: ' create -f qcow2 \
    -o preallocation=full plain.qcow2 9M
  img_refused '^nbdkit-qcow2-img: .*/plain.raw: ' create -f raw plain.raw 9M
)
[ ! -e ours/plain.raw ]
[ "$before" = "$(fingerprint ours/plain.qcow2)" ]

# A file in use is not replaced.
cd ours
start_nbdkit plain.qcow2
hold_connection
cd ..
img_refused 'is another process using the image' create -f qcow2 plain.qcow2 2M
drop_connections
stop_nbdkit
[ "$(virtual_size ours/plain.qcow2)" = 1073741824 ]
# Its permissions and its owner stay.
chmod 600 ours/plain.qcow2
img create -q -f qcow2 ours/plain.qcow2 2M
[ "$(stat -c %a ours/plain.qcow2)" = 600 ]
if chown 1:2 ours/plain.qcow2; then
  img create -q -f qcow2 ours/plain.qcow2 2M
  [ "$(stat -c %u:%g:%a ours/plain.qcow2)" = 1:2:600 ]
fi
# Who may not write to it cannot replace it, although the directory permits that.
chmod 444 ours/plain.qcow2
chmod 777 ours
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
program="$IMG"
if "${nobody[@]}" test -r "$program" && "${nobody[@]}" test -w ours; then
  if (cd ours && TMPDIR=/tmp "${nobody[@]}" "$program" create -q -f qcow2 plain.qcow2 7M) \
       2> protected.err; then fail "a write-protected file was replaced"; fi
  grep 'plain.qcow2: cannot replace: Permission denied' protected.err
fi
chmod 600 ours/plain.qcow2
# A link is followed.
ln -s plain.qcow2 ours/link
img create -q -f qcow2 ours/link 3M
[ -L ours/link ]
[ "$(virtual_size ours/plain.qcow2)" = 3145728 ]

# -o help names all options that it has.
img create -f qcow2 -o help | grep -E '^  extended_l2 '
img create -o help x | grep -E '^  preallocation '
