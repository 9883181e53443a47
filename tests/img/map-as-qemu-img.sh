#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img map says of an image what qemu-img map says of it, line for line.  (What
# is compressed, only newer versions of qemu-img say.)
#
# Environment: SEED.

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

# same ARGUMENT...: the same status and output.
same ()
{
  both_status map "$@" &&
    diff <(sed 's/, "compressed": [a-z]*//' theirs.out) \
      <(sed 's/, "compressed": [a-z]*//' ours.out)
}

# Like serve/map-as-qemu-img, this does not trust holes at once.
mapped ()
{
  local try
  for try in 1 2 3; do
    if same --output=json "$@" && [ "$status" = 0 ] && same "$@"; then return 0; fi
  done
  return 1
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
