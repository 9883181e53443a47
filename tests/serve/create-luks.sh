#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# New encrypted images: QEMU opens them with the same passphrase and no other, finds the
# parameters that it would have chosen itself, and reads what the server wrote, and vice
# versa.  A new disk reads as zeros, also if it is preallocated.

# shellcheck disable=SC2016

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

secret='the passphrase of a new disk'
printf '%s' "$secret" > "$tmp/secret"

# opened IMAGE: how QEMU is told to open it.
opened ()
{
  printf '%s' "driver=qcow2,file.filename=$1,encrypt.format=luks,encrypt.key-secret=s"
}

qemu_io ()
{
  local img="$1"
  shift
  qemu-io --object "secret,id=s,file=$tmp/secret" "$@" --image-opts "$(opened "$img")" |
    tee "$tmp/out"
  grep -q '/' "$tmp/out"
  if grep -q 'verification failed' "$tmp/out"; then return 1; fi
}

check_luks ()
{
  qemu-img check --object "secret,id=s,file=$tmp/secret" --image-opts "$(opened "$1")"
}

# What qemu-img info says of the encryption, but for what is random or measured.
described ()
{
  qemu-img info --output=json "$1" | "$python" -c '
import json, sys
luks = json.load(sys.stdin)["format-specific"]["data"]["encrypt"]
assert len(luks.pop("uuid")) == 36
assert luks.pop("master-key-iters") >= 1000
assert luks["slots"][0].pop("iters") >= 1000
print(json.dumps(luks, indent=1, sort_keys=True))'
}

# qemu-img gives up at random where it finds the machine too fast or too busy.
for ((i = 0; i < 50; ++i)); do
  qemu-img create -q -f qcow2 --object "secret,id=s,file=$tmp/secret" \
    -o "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10" \
    "$tmp/qemu.qcow2" 10M && break
done
described "$tmp/qemu.qcow2" > "$tmp/qemu.info"

number=0
try ()
{
  local img="$tmp/$((number += 1)).qcow2"

  start_nbdkit file="$img" create=10M encrypt=luks iter-time=10 \
    passphrase=+"$tmp/secret" "$@"
  if grep -qaF "$secret" "$img"; then fail "the passphrase is in the image"; fi
  nbdsh_run -c '
assert h.pread(10 << 20, 0) == bytes(10 << 20)
h.pwrite(b"S" * 1000000, 1000000)'
  stop_nbdkit
  check_luks "$img"
  described "$img" > "$tmp/ours.info"
  diff -u "$tmp/qemu.info" "$tmp/ours.info"
  qemu_io "$img" -c 'read -P 0 0 1000000' -c 'read -P 0x53 1000000 1000000' \
    -c 'read -P 0 2000000 8485760' -c 'write -P 0x51 5000000 1000000'
  check_luks "$img"
  start_nbdkit file="$img" passphrase="$secret"
  nbdsh_run -c '
assert h.pread(1000000, 1000000) == b"S" * 1000000
assert h.pread(1000000, 5000000) == b"Q" * 1000000
assert h.pread(4485760, 6000000) == bytes(4485760)'
  stop_nbdkit
}
try
try cluster-size=512
try cluster-size=2M
try compat=0.10
for preallocation in metadata falloc full; do
  try preallocation="$preallocation"
done

# Another passphrase opens nothing.
refused 'passphrase' file="$tmp/1.qcow2" passphrase=wrong
printf wrong > "$tmp/wrong"
if qemu-img convert --object "secret,id=s,file=$tmp/wrong" \
     --image-opts "$(opened "$tmp/1.qcow2")" "$tmp/out.raw"; then
  fail "QEMU opened it with a wrong passphrase"
fi

# No two disks have the same key: the same data, at the same place, look different.
for i in 6 7; do
  dd if="$tmp/$i.qcow2" of="$tmp/piece.$i" bs=64K skip=60 count=1 status=none
done
if cmp -s "$tmp/piece.6" "$tmp/piece.7"; then fail "two disks have one key"; fi

# The time that was asked for is what it takes: ten times as much for ten times as many.
iterations ()
{
  qemu-img info --output=json "$1" | "$python" -c '
import json, sys
print(json.load(sys.stdin)["format-specific"]["data"]["encrypt"]["slots"][0]["iters"])'
}
"$NBDKIT" -U - "$PLUGIN" "$tmp/slow.qcow2" create=1M encrypt=luks iter-time=200 \
  passphrase=x --run :
few=$(iterations "$tmp/1.qcow2") many=$(iterations "$tmp/slow.qcow2")
[ "$many" -gt $((few * 5)) ]
[ "$many" -lt $((few * 40)) ]

# With a backing file that is encrypted with the same passphrase, and with a data file.
"$NBDKIT" -U - "$PLUGIN" "$tmp/over.qcow2" create=auto encrypt=luks iter-time=10 \
  passphrase="$secret" backing-file=1.qcow2 backing-format=qcow2 \
  --run 'nbdinfo --size "$uri"' | grep -qx 10485760
qemu-img check --object "secret,id=s,file=$tmp/secret" --image-opts \
  "$(opened "$tmp/over.qcow2"),backing.encrypt.format=luks,backing.encrypt.key-secret=s"
cd "$tmp"
"$NBDKIT" -U - "$PLUGIN" external.qcow2 create=10M encrypt=luks iter-time=10 \
  passphrase="$secret" data-file=external.raw preallocation=metadata --run : || :
check_luks external.qcow2
qemu_io external.qcow2 -c 'read -P 0 0 10M' -c 'write -P 1 1M 1M' -c 'read -P 1 1M 1M'
