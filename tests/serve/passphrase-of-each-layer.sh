#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The encrypted images of a chain can have different passphrases: passphrase= is given for
# each of them, from the top; those that are not encrypted do not count.  QEMU finds the same
# disk, before and after changes, wherever the backing files are and however they are named.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

cd "$tmp"
objects=()
for id in one two three; do
  printf '%s' "secret of $id" > $id
  objects+=(--object "secret,id=$id,file=$id")
done

# luks NAME ID WORD...: a new image with this passphrase.
luks ()
{
  qemu-img create -q -f qcow2 "${objects[@]}" -u \
    -o "encrypt.format=luks,encrypt.iter-time=10,encrypt.key-secret=$2" "${@:3}" "$1" 4M
}

below=backing.encrypt.key-secret
chain="driver=qcow2,encrypt.key-secret=one,file.filename=top.qcow2"
chain+=",backing.$below=two,backing.backing.$below=three"

# new_chain: LUKS over a plain image, over LUKS, over LUKS; all of them contain something.
new_chain ()
{
  local at=0 opts
  rm -f ./*.qcow2

  luks bottom.qcow2 three
  luks middle.qcow2 two -b bottom.qcow2 -F qcow2
  qemu-img create -q -f qcow2 -u -b middle.qcow2 -F qcow2 plain.qcow2 4M
  luks top.qcow2 one -b plain.qcow2 -F qcow2
  for opts in encrypt.key-secret=three,file.filename=bottom.qcow2 \
      "encrypt.key-secret=two,file.filename=middle.qcow2,$below=three" \
      "file.filename=plain.qcow2,$below=two,backing.$below=three" "${chain#*,}"; do
    qemu-io "${objects[@]}" --image-opts "driver=qcow2,$opts" \
      -c "write -P $((at + 1)) ${at}00k 900k" > /dev/null
    at=$((at + 3))
  done
}

# qemu_reads OPTIONS: into disk.raw.
qemu_reads ()
{
  rm -f disk.raw
  qemu-img convert "${objects[@]}" --image-opts "$1" -O raw disk.raw
}

# shows PARAMETER...: we show the same.
shows ()
{
  rm -f copy.raw
  "$NBDKIT" -r -U - "$PLUGIN" "$@" --run 'nbdcopy "$uri" copy.raw'
  cmp copy.raw disk.raw
}

all=(passphrase=+one passphrase=+two passphrase=+three)

# --- reading and writing ---

new_chain
qemu_reads "$chain"
shows top.qcow2 "${all[@]}"
shows top.qcow2 "${all[@]/#/qcow2-}"
shows top.qcow2 "${all[@]}" passphrase=+one
start_nbdkit top.qcow2 "${all[@]}"
model random "$uri" disk.raw --seconds 1
stop_nbdkit
cp disk.raw model.raw
qemu_reads "$chain"
cmp disk.raw model.raw
qemu-img check "${objects[@]}" --image-opts "$chain"

# Too few, another order; the file in question is named.
refused_untouched 'middle.qcow2: LUKS: wrong passphrase.*give passphrase= again' top.qcow2 \
  passphrase=+one
refused_untouched 'bottom.qcow2: LUKS: wrong passphrase.*give passphrase= again' top.qcow2 \
  passphrase=+one passphrase=+two
refused_untouched 'middle.qcow2: LUKS: wrong passphrase: [^;]*$' top.qcow2 \
  passphrase=+one passphrase=+three passphrase=+two
refused_untouched 'top.qcow2: LUKS: wrong passphrase: [^;]*$' top.qcow2 \
  passphrase=+two passphrase=+one passphrase=+three

# --- in a directory ---

mkdir images
for name in top plain middle bottom; do ln $name.qcow2 images; done
start_nbdkit -r -- dir=images "${all[@]}"
rm -f copy.raw
nbdcopy "nbd+unix:///top.qcow2?socket=$sock" copy.raw
cmp copy.raw disk.raw
stop_nbdkit
rm -r images

# --- other names of backing files ---

json=$(printf '{"driver":"qcow2","encrypt.key-secret":"two","encrypt.format":"luks",%s}' \
  '"file":{"driver":"file","filename":"plain.qcow2"}')
luks json.qcow2 one -b "json:${json/plain/middle}" -F qcow2
qemu_reads "driver=qcow2,file.filename=json.qcow2,encrypt.key-secret=one,backing.$below=three"
shows json.qcow2 "${all[@]}"

# Behind NBD: by URI, and in JSON.
PLUGIN=file start_nbdkit_as far -r -- "$PWD/bottom.qcow2"
far="$uri"
json=$(printf '{"driver":"qcow2","encrypt.key-secret":"three","file":{"driver":"nbd",%s}}' \
  "\"server\":{\"type\":\"unix\",\"path\":\"$sock\"}")
for name in "$far" "json:$json"; do
  rm -f far.qcow2
  luks far.qcow2 two -b "$name" -F qcow2
  qemu_reads "driver=qcow2,file.filename=far.qcow2,encrypt.key-secret=two,$below=three"
  shows far.qcow2 allow-uri="$far" passphrase=+two passphrase=+three
  shows far.qcow2 backing="$far" passphrase=+two passphrase=+three
done
stop_nbdkit far

# --- changes: the disk stays the same, for QEMU too ---

new_chain
qemu_reads "$chain"
cp disk.raw model.raw
start_and_end top.qcow2 "${all[@]}" flatten=true
qemu_reads driver=qcow2,file.filename=top.qcow2,encrypt.key-secret=one
cmp disk.raw model.raw

# A new image over an encrypted one.
start_and_end new.qcow2 create=auto backing-file=middle.qcow2 backing-format=qcow2 \
  encrypt=luks iter-time=10 "${all[@]}"
qemu_reads "driver=qcow2,file.filename=new.qcow2,encrypt.key-secret=one,$below=two,\
backing.$below=three"
shows new.qcow2 "${all[@]}"
