#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# key-add=, key-erase= and key-erase-slot= change the passphrases of an image: qemu-img
# opens it with those that are there, and with no others, and finds the same disk.  So do
# we after qemu-img amend has changed them.  The last one is not erased without
# key-force=true.  What is refused changes nothing.

# shellcheck disable=SC2016

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

cd "$tmp"
random_file disk.raw 1048576
for name in one two three; do printf %s "$name" > $name; done

# keys PASSPHRASE PARAMETER...
keys ()
{
  local more=()

  if [[ " $*" = *" key-add="* ]]; then more=(iter-time=10); fi
  "$NBDKIT" -r -U - "$PLUGIN" l.qcow2 passphrase="+$1" "${more[@]}" "${@:2}" serve=false \
    --run true
}

# opens PASSPHRASE: does it, for QEMU?
opens ()
{
  qemu-img check -q --object secret,id=s,file="$1" \
    --image-opts driver=qcow2,encrypt.key-secret=s,file.filename=l.qcow2 2> said && return 0
  grep -q 'Invalid password' said || fail "$(cat said)"
  return 1
}

# opened_by PASSPHRASE...: exactly by these, and it shows the disk.
opened_by ()
{
  local name

  for name in one two three; do
    if [[ " $* " = *" $name "* ]]; then
      opens $name
      rm -f copy.raw
      "$NBDKIT" -r -U - "$PLUGIN" l.qcow2 passphrase=+$name --run 'nbdcopy "$uri" copy.raw'
      cmp copy.raw disk.raw
    else
      if opens $name; then fail "$name opens it"; fi
      refused_untouched 'wrong passphrase' l.qcow2 passphrase=+$name
    fi
  done
}

# Made by us, and by QEMU with other ciphers and hashes.
sample 2 ours aes-256,xts,plain64,sha1 aes-256,cbc,essiv,sha256 aes-128,cbc,plain64,sha512
for kind in "${sample[@]}"; do
  rm -f l.qcow2
  if [ $kind = ours ]; then
    "$NBDKIT" -U - "$PLUGIN" l.qcow2 create=1M encrypt=luks iter-time=10 passphrase=+one \
      --run 'nbdcopy disk.raw "$uri"'
  else
    IFS=, read -r cipher mode iv hash <<< "$kind"
    essiv=
    if [ "$iv" = essiv ]; then essiv=,encrypt.ivgen-hash-alg=sha256; fi
    qemu-img create -q -f qcow2 --object secret,id=s,file=one -o encrypt.format=luks \
      -o "encrypt.key-secret=s,encrypt.iter-time=10,encrypt.cipher-alg=$cipher" \
      -o "encrypt.cipher-mode=$mode,encrypt.ivgen-alg=$iv,encrypt.hash-alg=$hash$essiv" \
      l.qcow2 1M
    "$NBDKIT" -U - "$PLUGIN" l.qcow2 passphrase=+one --run 'nbdcopy disk.raw "$uri"'
  fi
  opened_by one
  keys one key-add=+two
  opened_by one two
  # Exchanged, and erased, by number too.
  keys two key-add=+three key-erase=+two
  opened_by one three
  keys three key-erase=+one
  opened_by three
  keys three key-add=+one
  keys one key-erase-slot=2
  opened_by one
done

# QEMU changes it, and we understand that; and the other way round.
amend ()
{
  qemu-img amend -q --object secret,id=a,file="$1" --object secret,id=b,file="$2" \
    --image-opts driver=qcow2,encrypt.key-secret=a,file.filename=l.qcow2 -o "$3"
}
if qemu-img amend --help | grep image-opts > /dev/null; then
  amend one two encrypt.state=active,encrypt.new-secret=b,encrypt.iter-time=10
  opened_by one two
  keys two key-erase=+one
  opened_by two
  keys two key-add=+one
  amend one two encrypt.state=inactive,encrypt.old-secret=b
  opened_by one
fi

# The server that makes the change unlocks the image, and serves it.
rm -f copy.raw
"$NBDKIT" -U - "$PLUGIN" l.qcow2 passphrase=+one key-add=+two key-erase=+one iter-time=10 \
  --run 'nbdcopy "$uri" copy.raw'
cmp copy.raw disk.raw
opened_by two

# --- refused ---

refused_untouched 'without its last key slot nobody can read' l.qcow2 passphrase=+two \
  key-erase=+two
refused_untouched 'opens no key slot' l.qcow2 passphrase=+two key-erase=+one key-add=+three
refused_untouched 'to be erased is not in use' l.qcow2 passphrase=+two key-erase-slot=7
refused_untouched 'key-erase-slot=8: must be 0 to 7' l.qcow2 passphrase=+two \
  key-erase-slot=8
refused_untouched 'wrong passphrase' l.qcow2 passphrase=+one key-add=+three
refused_untouched 'key-add=: the passphrase must not be empty' l.qcow2 passphrase=+two \
  key-add=
refused_untouched 'key-add= requires passphrase=' l.qcow2 key-add=+two
refused 'key-add= cannot be used with create=' new.qcow2 create=1M encrypt=luks \
  passphrase=+one key-add=+two
make_image plain.qcow2 1M
refused_untouched 'the image is not encrypted with LUKS' plain.qcow2 passphrase=+two \
  key-add=+one
start_nbdkit -r -- l.qcow2 passphrase=+two
refused_untouched 'lock' l.qcow2 passphrase=+two key-add=+three
stop_nbdkit
# All eight.
for ((i = 1; i < 8; i++)); do keys two key-add=n$i; done
refused_untouched 'all of its key slots are in use' l.qcow2 passphrase=+two key-add=+three
opens two

# For ever.
for ((i = 1; i < 8; i++)); do keys two key-erase=n$i; done
opened_by two
keys two key-erase=+two key-force=true
if opens two; then fail "it opens it"; fi
refused 'no key slot is in use' l.qcow2 passphrase=+two
