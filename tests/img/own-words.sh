#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What nbdkit-qcow2-img says of a fault, and of what can be done about it, names its own
# options, never a parameter of the plugin.  Without the backing file, or its format, it
# names the image that lacks it and the command that mends it.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

# All parameters but those that options of -o are named after, too.
parameters=$("$NBDKIT" "$PLUGIN" --help | sed -nE 's/^\[?([a-z0-9-]+)=.*/\1/p' |
  grep -vxE 'compat|preallocation|size' | tr '\n' '|' | sed 's/|$//')
[[ "$parameters" = *bitmap-granularity*snapshot-create* ]]

# said PATTERN ARGUMENT...: is refused with this, and without any word of the plugin.
said ()
{
  img_refused "$@"
  if grep -Ew -- "($parameters)=" ours.err; then fail "a parameter: ${*:2}"; fi
}

secret=(--object "secret,id=s,data=hush")
other=(--object "secret,id=t,data=none")
cd ours
qemu-img create -q -f qcow2 disk.qcow2 10M
qemu-img create -q -f raw disk.raw 10M
qemu-img create -q -f qcow2 "${secret[@]}" -o encrypt.iter-time=10 \
  -o encrypt.format=luks,encrypt.key-secret=s secret.qcow2 1M
qemu-img create -q -f qcow2 -u -b nbd://localhost/x -F raw far.qcow2 1M
qemu-img create -q -f qcow2 -b disk.qcow2 -F qcow2 over.qcow2
qemu-img create -q -f qcow2 -u -b gone.qcow2 -F qcow2 lost.qcow2 1M
qemu-img create -q -f qcow2 -u -b lost.qcow2 -F qcow2 top.qcow2 1M
qemu-img create -q -f qcow2 -b disk.qcow2 -F qcow2 plain.qcow2
# As old programs have written it, without the extension that says the format.
"$python" - <<'PY'
with open("plain.qcow2", "r+b") as f:
    f.seek(f.read().index(b"\xe2\x79\x2a\xca"))
    f.write(b"none")
PY
cd ..

said 'requires --shrink' resize disk.qcow2 1M
said 'larger size' resize --shrink --preallocation=full disk.qcow2 1M
said '--object secret,id=' convert secret.qcow2 new.raw
said '--object secret,id=' snapshot -c one secret.qcow2
said '^[^ ]* -g 3072: must be a power of two' bitmap --add -g 3072 disk.qcow2 day
said '^[^ ]* -c: a name must have 1 to 255 bytes' snapshot -c '' disk.qcow2
said '^[^ ]* bitmap: a name must have' bitmap --add disk.qcow2 ''
said '^[^ ]* -F vmdk: must be qcow2 or raw' rebase -b disk.qcow2 -F vmdk over.qcow2
said '--allow-uri URI' map far.qcow2
said '^[^ ]* --allow-uri x: must be an NBD URI' map --allow-uri x disk.qcow2

for command in "convert -O raw" map "measure -O raw"; do
  read -ra words <<< "$command"
  target=()
  [ "${words[0]}" != convert ] || target=(new.raw)
  said 'plain.qcow2: .*"nbdkit-qcow2-img rebase -u -b FILE -F FORMAT IMAGE"' \
    "${words[@]}" plain.qcow2 "${target[@]}"
  said 'gone.qcow2: .*backing file of [^ ]*lost.qcow2: "nbdkit-qcow2-img rebase -u ' \
    "${words[@]}" top.qcow2 "${target[@]}"
done
said 'backing file of [^ ]*lost.qcow2: ' commit lost.qcow2
said 'backing file of [^ ]*lost.qcow2: ' info --backing-chain top.qcow2
# They do mend it.
cd ours
img rebase -u -b disk.qcow2 -F qcow2 plain.qcow2
img rebase -u -b disk.qcow2 -F qcow2 lost.qcow2
img map plain.qcow2 && img map top.qcow2
cd ..

said '^[^ ]* compat=7: must be' amend -o compat=7 disk.qcow2
said 'a power of two' amend -o refcount_bits=3 disk.qcow2
said 'the list of options ends with a comma' amend -o , disk.qcow2
said 'version 3: add compat=1.1' amend -o compat=0.10,lazy_refcounts=on disk.qcow2
said 'only a new image' amend -o data_file_raw=on disk.qcow2
keys ()
{
  said "$1" amend "${secret[@]}" "${other[@]}" --image-opts "${@:3}" \
    -o "$2" driver=qcow2,file.filename=secret.qcow2,encrypt.key-secret=s
}
keys 'to be erased opens no key slot' encrypt.state=inactive,encrypt.old-secret=t
keys '--force permits that' encrypt.state=inactive,encrypt.old-secret=s
keys '^[^ ]* encrypt.keyslot=9: must be 0 to 7' encrypt.state=inactive,encrypt.keyslot=9
keys '^[^ ]* encrypt.iter-time=0: must be' \
  encrypt.state=active,encrypt.new-secret=t,encrypt.iter-time=0

new ()
{
  said "$1" create -f qcow2 "${secret[@]}" -o "$2" "${@:3}" new.qcow2 1M
}
new 'cluster size must be' cluster_size=3000
new 'an option without a name' =64k
new '^[^ ]* refcount_bits=x: not a whole number' refcount_bits=x
new 'extended L2 entries require version 3' compat=0.10,extended_l2=on
new 'clusters of 16K' cluster_size=4k,extended_l2=on
new '^[^ ]* compression_type=no: must be zlib' compression_type=no
new 'only an external data file' data_file_raw=on
new 'no backing file' data_file=data,data_file_raw=on -b disk.raw -F raw
new 'over a backing file' preallocation=full -b disk.raw -F raw
new '^[^ ]* encrypt.format=no: must be luks' encrypt.format=no,encrypt.key-secret=s
new '^[^ ]* -F vmdk: must be' cluster_size=64k -b disk.raw -F vmdk
said 'too large: the maximum' create -f qcow2 new.qcow2 7E
said 'too large: the maximum' measure -O qcow2 --size 7E
said '^[^ ]* -c cannot be used with data_file=' convert -c -O qcow2 -o data_file=data \
  disk.raw new.qcow2
said 'data_file=: a new data file must be a file' create -f qcow2 \
  -o data_file=nbd://localhost/x new.qcow2 1M
said '^[^ ]* -c cannot be used with encrypt.format=' convert -c -O qcow2 "${secret[@]}" \
  -o encrypt.format=luks,encrypt.key-secret=s disk.raw new.qcow2

# A command without --image-opts proposes another one, which mends it.
cd ours
qemu-img create -q -f qcow2 -o data_file=old.raw data.qcow2 1M
mv old.raw moved.raw
qemu-img create -q -f qcow2 "${other[@]}" -u -b secret.qcow2 -F qcow2 \
  -o encrypt.format=luks,encrypt.key-secret=t,encrypt.iter-time=10 both.qcow2 1M
if img validate "${other[@]}" data.qcow2 both.qcow2 > ../tap; then fail "both files?"; fi
cat ../tap
if grep -e '--image-opts with ' ../tap; then fail "validate has no --image-opts"; fi
grep 'data.qcow2: "nbdkit-qcow2-img amend -o data_file=FILE", with --image-opts, ' ../tap
grep 'secret.qcow2: .*"nbdkit-qcow2-img check" takes more than one, with --image-opts' ../tap
img amend --image-opts -o data_file=moved.raw \
  driver=qcow2,file.filename=data.qcow2,data-file.filename=moved.raw
img validate data.qcow2
cd ..
img_untouched data.qcow2 'name of the data file contains a control character' \
  amend -o $'data_file=moved\n.raw' data.qcow2
cd ours

# Of an image here, a data file behind NBD is only read.
PLUGIN="file" start_nbdkit moved.raw
img amend -o "data_file=$uri" data.qcow2
said 'data.qcow2: .*NBD has no locks: an export is written only if it is the image that ' \
  resize --allow-uri "$uri" data.qcow2 2M
img compare --allow-uri "$uri" -f raw moved.raw data.qcow2
