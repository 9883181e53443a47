#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img takes a passphrase for each encrypted image of a chain, as qemu-img does:
# --image-opts with encrypt.key-secret, backing.encrypt.key-secret and so on.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

secrets=()
for id in one two three; do
  secrets+=(--object "secret,id=$id,data=secret-of-$id")
done

# luks NAME ID WORD...: a new image in both directories, ours made by our program.
luks ()
{
  both create -q -f qcow2 "${secrets[@]}" -u \
    -o "encrypt.format=luks,encrypt.iter-time=10,encrypt.key-secret=$2" "${@:3}" "$1" 4M
}

# opts NAME ID...: with the passphrases of the chain.
opts ()
{
  local found="driver=qcow2,file.filename=$1" node=
  for id in "${@:2}"; do
    [ "$id" = none ] || found+=",${node}encrypt.key-secret=$id"
    node+=backing.
  done
  echo "$found"
}

# write OFFSET LENGTH BYTE IMAGE-OPTIONS
write ()
{
  in_both qemu-io "${secrets[@]}" --image-opts "$4" -c "write -P $3 $1 $2" > /dev/null
}

luks bottom.qcow2 three
luks middle.qcow2 two -b bottom.qcow2 -F qcow2
in_both qemu-img create -q -f qcow2 -u -b middle.qcow2 -F qcow2 plain.qcow2 4M
luks top.qcow2 one -b plain.qcow2 -F qcow2
bottom=$(opts bottom.qcow2 three)
middle=$(opts middle.qcow2 two three)
top=$(opts top.qcow2 one none two three)
write 0 1M 1 "$bottom"
write 512k 1M 2 "$middle"
write 1M 1M 3 "$(opts plain.qcow2 none two three)"
write 2M 100k 4 "$top"

both convert "${secrets[@]}" --image-opts -O raw "$top" disk.raw
same_image raw disk.raw
both convert "${secrets[@]}" --image-opts -O qcow2 "$top" disk.qcow2
same_image qcow2 disk.qcow2
cp theirs/disk.raw model.raw
both compare "${secrets[@]}" --image-opts "$top" driver=raw,file.filename=disk.raw
both compare "${secrets[@]}" --image-opts "$middle" "$top"
both map "${secrets[@]}" --image-opts "$middle"

# Over the same backing file, and into a new image with a passphrase of its own.
both convert "${secrets[@]}" --image-opts -O qcow2 \
  -o encrypt.format=luks,encrypt.iter-time=10,encrypt.key-secret=one "$top" copy.qcow2
(cd ours && img convert "${secrets[@]}" --image-opts -O qcow2 -B bottom.qcow2 -F qcow2 \
  -o encrypt.format=luks,encrypt.iter-time=10,encrypt.key-secret=one "$middle" layer.qcow2)
for found in "$(opts copy.qcow2 one)" "$(opts layer.qcow2 one three)"; do
  other=$top
  [[ $found != *layer* ]] || other=$middle
  (cd ours && qemu-img compare "${secrets[@]}" --image-opts "$found" "$other")
done

# Over an image further down.
luks empty.qcow2 two -b bottom.qcow2 -F qcow2
luks over.qcow2 one -b empty.qcow2 -F qcow2
over=$(opts over.qcow2 one two three)
write 100k 50k 5 "$over"
(cd ours && img convert "${secrets[@]}" --image-opts -O qcow2 -B bottom.qcow2 -F qcow2 \
  "$over" short.qcow2)
(cd ours && qemu-img compare "${secrets[@]}" --image-opts "$(opts short.qcow2 none three)" \
  "$over")

# Too few, or names of none.
img_refused 'bottom.qcow2: LUKS: wrong passphrase.*backing.encrypt.key-secret=ID' \
  convert "${secrets[@]}" --image-opts -O raw "$(opts middle.qcow2 two)" x.raw
both_status convert "${secrets[@]}" --image-opts -O raw "$(opts middle.qcow2 two four)" x.raw
[ "$status" = 1 ]

# Changes.
both commit -q "${secrets[@]}" --image-opts "$top"
(cd ours && img commit -q "${secrets[@]}" -b bottom.qcow2 --image-opts \
  "$(opts plain.qcow2 none two three)")
for found in "$bottom" "$top"; do
  (cd ours && qemu-img convert "${secrets[@]}" --image-opts -O raw "$found" disk.raw)
  cmp ours/disk.raw model.raw
done
cd ours
img rebase "${secrets[@]}" --image-opts -b middle.qcow2 -F qcow2 "$top"
qemu-img convert "${secrets[@]}" --image-opts -O raw "$(opts top.qcow2 one two three)" disk.raw
cmp disk.raw ../model.raw
# (A passphrase of an image over others.)
img amend "${secrets[@]}" --image-opts \
  -o encrypt.state=active,encrypt.new-secret=three,encrypt.iter-time=10 \
  "$(opts top.qcow2 one two three)"
img amend "${secrets[@]}" --image-opts -o encrypt.state=inactive,encrypt.old-secret=one \
  "$(opts top.qcow2 three two three)"
qemu-img convert "${secrets[@]}" --image-opts -O raw "$(opts top.qcow2 three two three)" disk.raw
cmp disk.raw ../model.raw
qemu-img convert "${secrets[@]}" --image-opts -O raw "$middle" disk.raw
img rebase "${secrets[@]}" --image-opts -b '' "$middle"
qemu-img compare "${secrets[@]}" --image-opts "$(opts middle.qcow2 two)" \
  driver=raw,file.filename=disk.raw
