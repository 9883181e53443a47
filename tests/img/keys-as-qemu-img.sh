#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img amend changes the passphrases of an image: qemu-img opens it with those
# that are there, and with no others, and finds the same disk.  So do we after qemu-img amend
# has changed them.  The last one is not erased without --force.  What is refused changes
# nothing.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/random.sh"
. "$srcdir/lib/img.sh"

random_file disk.raw 1048576
secrets=()
for id in first second third; do
  secrets+=(--object "secret,id=$id,data=hush-$id")
done

luks ()
{
  echo "driver=qcow2,file.filename=secret.qcow2,encrypt.key-secret=$1"
}

# shows PROGRAM PASSPHRASE: it opens the image with it, and finds the disk.
shows ()
{
  "$1" compare -q "${secrets[@]}" --image-opts "$(luks "$2")" \
    "driver=raw,file.filename=$tmp/disk.raw" 2> "$tmp/said"
}

# opens PASSPHRASE...: exactly these open the image.
opens ()
{
  local id program

  for id in first second third; do
    for program in qemu-img img; do
      if [[ " $* " = *" $id "* ]]; then
        shows $program $id
      else
        if shows $program $id; then fail "$id opens the image"; fi
        grep -Ei 'invalid password|wrong passphrase' "$tmp/said"
      fi
    done
  done
}

# keys OPTIONS PASSPHRASE ARGUMENT...: the image is opened with this one.
keys ()
{
  img amend "${secrets[@]}" --image-opts -o "$1" "$(luks "$2")" "${@:3}"
}
add ()
{
  echo "encrypt.state=active,encrypt.iter-time=10,encrypt.new-secret=$1"
}
erase=encrypt.state=inactive

# refused PATTERN OPTIONS PASSPHRASE ARGUMENT...
refused ()
{
  img_untouched secret.qcow2 "$1" amend "${secrets[@]}" --image-opts -o "$2" "$(luks "$3")" \
    "${@:4}"
}

in_use ()
{
  qemu-img info --output=json secret.qcow2 | "$python" -c 'import json, sys
slots = json.load(sys.stdin)["format-specific"]["data"]["encrypt"]["slots"]
print("[%s]" % ",".join(str(i) for i, slot in enumerate(slots) if slot["active"]))'
}

cd ours
# Made by us, and by QEMU with other ciphers and hashes.
declare cipher mode iv hash
sample 2 aes-256,xts,plain64,sha1 aes-256,cbc,essiv,sha256 aes-128,cbc,plain64,sha512
for kind in ours "${sample[@]}"; do
  rm -f secret.qcow2
  made=encrypt.format=luks,encrypt.key-secret=first,encrypt.iter-time=10
  program=img
  if [ "$kind" != ours ]; then
    program=qemu-img
    IFS=, read -r cipher mode iv hash <<< "$kind"
    made+=",encrypt.cipher-alg=$cipher,encrypt.cipher-mode=$mode,encrypt.hash-alg=$hash"
    made+=",encrypt.ivgen-alg=$iv"
    [ "$iv" != essiv ] || made+=,encrypt.ivgen-hash-alg=sha256
  fi
  $program convert "${secrets[@]}" -O qcow2 -o "$made" ../disk.raw secret.qcow2
  opens first
  keys "$(add second)" first
  opens first second
  keys "$(add third)" second
  keys $erase,encrypt.old-secret=first second
  opens second third
  keys $erase,encrypt.keyslot=1 third
  opens third
  # In a chosen slot, as qemu-img does it.
  [ "$(in_use)" = "[2]" ]
  keys "$(add first),encrypt.keyslot=6" third
  opens first third
  [ "$(in_use)" = "[2,6]" ]
  # QEMU changes it, and we understand that.
  qemu-img amend -q "${secrets[@]}" --image-opts -o "$(add second)" "$(luks third)"
  opens first second third
  qemu-img amend -q "${secrets[@]}" --image-opts -o $erase,encrypt.old-secret=second \
    "$(luks third)"
  opens first third
done

# --- what is refused ---

# By both programs.
cp secret.qcow2 ../theirs
cd ..
before=$(fingerprint ours/secret.qcow2)
active=encrypt.state=active
for options in $active,encrypt.new-secret=second,encrypt.keyslot=6 \
    $active,encrypt.new-secret=second,encrypt.keyslot=8 \
    $active,encrypt.new-secret=second,encrypt.keyslot=-1 \
    $active,encrypt.new-secret=second,encrypt.keyslot=x \
    $active,encrypt.new-secret=second,encrypt.old-secret=first \
    $active,encrypt.keyslot=7 $active $active,encrypt.new-secret=none \
    encrypt.new-secret=second \
    $erase,encrypt.keyslot=7 \
    $erase,encrypt.keyslot=9 \
    $erase,encrypt.old-secret=second \
    $erase,encrypt.keyslot=6,encrypt.old-secret=third \
    $erase,encrypt.keyslot=6,encrypt.old-secret=none \
    $erase,encrypt.keyslot=6,encrypt.new-secret=second \
    $erase,encrypt.keyslot=6,encrypt.iter-time=10; do
  both_status amend "${secrets[@]}" --image-opts -o "$options" "$(luks third)"
  [ "$status" = 1 ]
  [ "$before" = "$(fingerprint ours/secret.qcow2)" ]
done
cd ours
keys $erase,encrypt.keyslot=6,encrypt.old-secret=first third
opens third

refused 'without its last key slot nobody can read' $erase,encrypt.old-secret=third third
refused 'opens no key slot' $erase,encrypt.old-secret=first third
refused 'to be erased is not in use' $erase,encrypt.keyslot=7 third
refused 'wrong passphrase' "$(add second)" first
refused 'the passphrase must not be empty' "$(add empty)" third --object secret,id=empty,data=
img_untouched secret.qcow2 'the secret that opens the image is required' \
  amend "${secrets[@]}" -o "$(add first)" secret.qcow2
make_image plain.qcow2 1M
img_untouched plain.qcow2 'the image is not encrypted with LUKS' amend "${secrets[@]}" \
  --image-opts -o "$(add first)" driver=qcow2,file.filename=plain.qcow2,encrypt.key-secret=third
start_nbdkit -r -- secret.qcow2 passphrase=hush-third
refused 'lock' "$(add second)" third
stop_nbdkit
# All eight.
for ((i = 0; i < 7; i++)); do keys "$(add first)" third; done
refused 'all of its key slots are in use' "$(add second)" third
opens first third

# For ever.
keys $erase,encrypt.old-secret=first third
opens third
keys $erase,encrypt.old-secret=third third --force
for id in first second third; do
  for program in qemu-img img; do
    if shows $program $id; then fail "$id opens the image"; fi
  done
done
grep 'no key slot is in use' "$tmp/said"
