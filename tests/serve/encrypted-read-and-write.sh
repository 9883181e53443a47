#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Encrypted images (LUKS, and the older AES method) can be read and written: QEMU and the
# server read what the other has written, at any alignment; some or all layers of a chain
# may be encrypted.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
printf 'open sesame' > "$tmp/secret"
object="secret,id=s,file=$tmp/secret"

# create FILE SIZE OPTIONS...
create ()
{
  local file="$1" size="$2"
  shift 2
  qemu-img create -q -f qcow2 --object "$object" "$@" "$file" "$size"
}

# options FORMAT: what qemu-img's tools need to open the image.
image_opts () { echo "driver=qcow2,encrypt.format=$1,encrypt.key-secret=s,file.filename=$2"; }

luks=encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10
aes=encrypt.format=aes,encrypt.key-secret=s

# both_ways FORMAT NAME: QEMU writes, we read and write, QEMU reads.
both_ways ()
{
  local format="$1" name="$2" opts
  opts="$(image_opts "$format" "$img")"
  qemu-io --object "$object" --image-opts "$opts" \
    -c 'write -P 7 64k 300k' -c 'write -P 9 3M 512' > /dev/null
  qemu-img convert --object "$object" --image-opts "$opts" -O raw "$tmp/model.raw"
  start_nbdkit file="$img" passphrase="+$tmp/secret"
  model random "$uri" "$tmp/model.raw" --seconds 1 --cluster "${cluster:-64k}"
  stop_nbdkit
  qemu-img check --object "$object" --image-opts "$opts"
  qemu-img convert --object "$object" --image-opts "$opts" -O raw "$tmp/after.raw"
  cmp "$tmp/model.raw" "$tmp/after.raw"
  # Nothing that was written can be seen in the file.
  if grep -q "$(printf '\007%.0s' {1..64})" "$img"; then fail "plaintext in the file"; fi
  echo "ok: $name"
}

sample 2 512 4k 64k 2M
for cluster in "${sample[@]}"; do
  create "$img" 4M -o "cluster_size=$cluster,$luks"
  both_ways luks "LUKS, clusters of $cluster"
done
cluster=64k
for variant in cipher-alg=aes-128 cipher-mode=cbc,encrypt.ivgen-alg=plain64 \
    cipher-mode=cbc,encrypt.ivgen-alg=essiv,encrypt.ivgen-hash-alg=sha256 \
    hash-alg=sha512,encrypt.cipher-alg=aes-256,encrypt.cipher-mode=cbc; do
  create "$img" 4M -o "$luks,encrypt.$variant"
  both_ways luks "LUKS, $variant"
done
create "$img" 4M -o "$aes"
both_ways aes "AES"
for what in "$luks" "$aes"; do
  create "$img" 4M -o "$what,extended_l2=on,cluster_size=32k"
  format="${what#encrypt.format=}"
  cluster=32k both_ways "${format%%,*}" "${format%%,*}, subclusters"
done
create "$img" 4M -o "$luks,refcount_bits=64,preallocation=metadata"
both_ways luks "LUKS, preallocated"

# The passphrase, in nbdkit's ways; a wrong one, and none.
create "$img" 1M -o "$luks"
for pass in 'open sesame' "+$tmp/secret"; do
  start_nbdkit file="$img" passphrase="$pass"
  nbdinfo --size "$uri"
  stop_nbdkit
done
start_nbdkit_as main --filter=nofilter -- file="$img" qcow2-passphrase='open sesame'
stop_nbdkit
refused 'passphrase' file="$img" passphrase=wrong
refused 'passphrase=' file="$img"

# An internal snapshot, and clusters that are shared with it.
random_file "$tmp/data.raw" 1048576
start_nbdkit file="$img" passphrase="open sesame"
nbdcopy "$tmp/data.raw" "$uri"
stop_nbdkit
qemu-img snapshot --object "$object" --image-opts -c one "$(image_opts luks "$img")"
cp "$tmp/data.raw" "$tmp/model.raw"
start_nbdkit file="$img" passphrase="open sesame"
model random "$uri" "$tmp/model.raw" --seconds 1
nbdcopy "nbd+unix:///one?socket=$sock" "$tmp/one.raw"
stop_nbdkit
cmp "$tmp/data.raw" "$tmp/one.raw"
qemu-img check --object "$object" --image-opts "$(image_opts luks "$img")"

# An encrypted overlay over a plain base, and a plain overlay over an encrypted base.
qemu-img convert -f raw -O qcow2 "$tmp/data.raw" "$tmp/base.qcow2"
create "$img" 1M -b base.qcow2 -F qcow2 -o "$luks"
cp "$tmp/data.raw" "$tmp/model.raw"
start_nbdkit file="$img" passphrase="open sesame"
model random "$uri" "$tmp/model.raw" --seconds 1
stop_nbdkit
qemu-img convert --object "$object" --image-opts "$(image_opts luks "$img")" -O raw "$tmp/after.raw"
cmp "$tmp/model.raw" "$tmp/after.raw"

mv "$img" "$tmp/middle.qcow2"
qemu-img create -q -f qcow2 -u -b middle.qcow2 -F qcow2 "$img" 1M
start_nbdkit file="$img" passphrase="open sesame"
model random "$uri" "$tmp/model.raw" --seconds 1
stop_nbdkit
chain="driver=qcow2,file.filename=$img,backing.driver=qcow2,backing.file.filename=$tmp/middle.qcow2"
chain="$chain,backing.encrypt.format=luks,backing.encrypt.key-secret=s"
qemu-img check --object "$object" --image-opts "$chain"
qemu-img convert --object "$object" --image-opts "$chain" -O raw "$tmp/after.raw"
cmp "$tmp/model.raw" "$tmp/after.raw"
