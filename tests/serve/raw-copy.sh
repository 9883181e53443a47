#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# raw-copy= writes the disk to a new raw file, as qemu-img convert does: of chains, of
# compressed and encrypted images, of snapshots, and of images behind NBD.  The file appears
# when it is complete.  Flattening a new image over a disk copies in the other direction.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version
. "$srcdir/lib/random.sh"
cd "$tmp"

# raw_copy PARAMETER...: to copy.raw; nothing is served.
raw_copy ()
{
  rm -f copy.raw
  "$NBDKIT" -r -U - "$PLUGIN" "$@" raw-copy=copy.raw --run true
  [ -f copy.raw ]
}

# refused PATTERN PARAMETER...
refused ()
{
  local pattern="$1"
  shift
  if "$NBDKIT" -U - "$PLUGIN" "$@" --run true 2> err; then fail "accepted: $*"; fi
  cat err
  grep -Eq -- "$pattern" err
}

# Data, zeros and holes, in two layers.
writes=()
for ((i = 1; i <= 12; ++i)); do
  writes+=(-c "write -P $((i % 3)) $((RANDOM % 9000))k $((1 + RANDOM % 700))k"
           -c "write -z $((RANDOM % 9000))k $((1 + RANDOM % 300))k")
done
qemu-img create -q -f qcow2 base.qcow2 10M
qemu-io -f qcow2 "${writes[@]:0:24}" base.qcow2
qemu-img snapshot -c then base.qcow2
qemu-io -f qcow2 -c "write -P 9 1M 3M" base.qcow2
qemu-img create -q -f qcow2 -o cluster_size=4k -b base.qcow2 -F qcow2 disk.qcow2 12345856
qemu-io -f qcow2 "${writes[@]:24}" disk.qcow2
qemu-img convert -O raw disk.qcow2 disk.raw
qemu-img convert -O raw -l then base.qcow2 then.raw
qemu-img convert -c -O qcow2 disk.qcow2 small.qcow2

for image in disk.qcow2 small.qcow2; do
  before=$(fingerprint "$image")
  raw_copy "$image"
  cmp copy.raw disk.raw
  [ "$before" = "$(fingerprint "$image")" ]
done
raw_copy base.qcow2 snapshot=then
cmp copy.raw then.raw
"$NBDKIT" -U - "$PLUGIN" disk.qcow2 raw-copy=other.raw serve=false cache=unsafe --run true
cmp other.raw disk.raw
# Zeros take no space, also if they are stored as data.
qemu-img create -q -f qcow2 zeros.qcow2 8M
qemu-io -f qcow2 -c 'write -P 0 0 8M' -c 'write -P 1 4M 4k' zeros.qcow2
raw_copy zeros.qcow2
[ "$(allocated_kib copy.raw)" -le 64 ]
qemu-img compare -q -f raw -F qcow2 copy.raw zeros.qcow2

# Encrypted, and behind NBD.
"$NBDKIT" -U - "$PLUGIN" luks.qcow2 create=5M encrypt=luks passphrase=x iter-time=1 \
  backing-file=then.raw backing-format=raw flatten=true --run true
raw_copy luks.qcow2 passphrase=x
head -c 5M then.raw | cmp - copy.raw
qemu-nbd -t --fork -r --pid-file=far.pid -f raw -k "$sockdir/far.sock" base.qcow2
helper_pids+=("$(cat far.pid)")
raw_copy "nbd+unix:///?socket=$sockdir/far.sock" snapshot=then
cmp copy.raw then.raw

# The disk is served afterwards, unless nobody wants that.
rm copy.raw
"$NBDKIT" -r -U - "$PLUGIN" disk.qcow2 raw-copy=copy.raw \
  --run 'nbdcopy "$uri" served.raw && cmp served.raw copy.raw'

# In the other direction: holes of the raw disk are not read, and zeros take no clusters.
truncate -s 1T large.raw
dd if=disk.raw of=large.raw bs=1M count=2 seek=700000 conv=notrunc status=none
for options in "" compress=on; do
  rm -f new.qcow2
  # shellcheck disable=SC2086
  "$NBDKIT" -U - "$PLUGIN" new.qcow2 create=auto backing-file=large.raw \
    backing-format=raw flatten=true cluster-size=2M cache=unsafe $options --run true
  check_clean new.qcow2
  qemu-img compare -q -f raw -F qcow2 large.raw new.qcow2
  [ "$(allocated_kib new.qcow2)" -le 16384 ]
  [ "$(qemu-img info new.qcow2 | grep -c backing)" = 0 ]
done

# What exists stays, and what fails leaves nothing.
echo kept > copy.raw
refused 'copy.raw: cannot create: the file exists already' disk.qcow2 raw-copy=copy.raw
[ "$(cat copy.raw)" = kept ]
ln -s none dangling
refused 'exists already' disk.qcow2 raw-copy=dangling
refused 'cannot open its directory' disk.qcow2 raw-copy=none/copy.raw
refused 'raw-copy= and map= name|map= and raw-copy= name' disk.qcow2 raw-copy=a map=a
refused 'cannot be used with raw-copy=' dir=. raw-copy=new.raw
(ulimit -f 2048; refused 'File too large|No space left' disk.qcow2 raw-copy=new.raw)
[ ! -e new.raw ]
qemu-io -f qcow2 -c 'write -P 1 0 64k' zeros.qcow2
header_patch zeros.qcow2 $((0x40000)) Q $((0x8000000000000000 | 0x50200))
refused 'L2 entry' zeros.qcow2 raw-copy=new.raw
[ ! -e new.raw ]
[ -z "$(ls -A | grep qcow2-new || :)" ]
