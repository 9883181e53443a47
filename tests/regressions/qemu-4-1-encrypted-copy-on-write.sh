#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU 4.1: copy-on-write damages encrypted images.
#
# "block/qcow2: Fix corruption introduced by commit 8ac0f15f335": of a write to several
# clusters, what was copied behind the data was encrypted for the place of the first
# cluster, and decrypted to garbage.
#
# https://gitlab.com/qemu-project/qemu/-/blob/v4.2.0/tests/qemu-iotests/263
# Broken: copied-data-encrypted-for-another-place

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2" secret='open sesame'
random_file "$tmp/data.raw" $((1 << 20))
printf '%s' "$secret" > "$tmp/secret"
cp "$tmp/data.raw" "$tmp/before.raw"
for format in luks aes; do
  cp "$tmp/before.raw" "$tmp/data.raw"
  rm -f "$img"
  case "$format" in
    luks) start_and_end file="$img" create=1M encrypt=luks iter-time=10 \
            passphrase=+"$tmp/secret" ;;
    aes) qemu-img create -q -f qcow2 --object "secret,id=s,file=$tmp/secret" \
           -o encrypt.format=aes,encrypt.key-secret=s "$img" 1M ;;
  esac
  start_nbdkit file="$img" passphrase=+"$tmp/secret"
  nbdcopy "$tmp/data.raw" "$uri"
  stop_nbdkit
  start_and_end file="$img" passphrase=+"$tmp/secret" snapshot-create=s
  # Clusters that the snapshot shares, the first and the last in part: the rest is copied.
  start_nbdkit file="$img" passphrase=+"$tmp/secret"
  nbdsh_run -c 'for i in range(4): h.pwrite(b"x" * 100000, (i << 18) + 30000)'
  stop_nbdkit
  "$python" - "$tmp/data.raw" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    for i in range(4):
        f.seek((i << 18) + 30000)
        f.write(b"x" * 100000)
PY
  # QEMU decrypts all of it.
  qemu-img convert --object "secret,id=s,file=$tmp/secret" -O raw \
    --image-opts "driver=qcow2,encrypt.key-secret=s,file.filename=$img" "$tmp/out.raw"
  cmp "$tmp/out.raw" "$tmp/data.raw"
done
