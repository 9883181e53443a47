#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU 2.10: committing an encrypted image loses its LUKS header.
#
# "qcow2: fix image corruption after committing qcow2 image into base": once the data was
# in the backing file, the image was made empty without regard to the clusters that
# contain the keys.  The test that QEMU added then commits an encrypted image, too.
#
# https://qemu.googlesource.com/qemu/+/3eb43aeb164f1f83c97ff693c7d464b49755110c/tests/qemu-iotests/198.out
# Broken: emptied-image-loses-luks-header

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2" base="$tmp/base.qcow2" size=$((1 << 20))
random_file "$tmp/below.raw" "$size"
random_file "$tmp/above.raw" "$size"
random_file "$tmp/after.raw" "$size"
printf 'open sesame' > "$tmp/secret"
secret=(--object "secret,id=s,file=$tmp/secret")

# fill IMAGE RAW: by the plugin.
fill ()
{
  start_nbdkit file="$1" passphrase=+"$tmp/secret"
  nbdcopy "$2" "$uri"
  stop_nbdkit
}

# opts IMAGE: what opens it.
opts ()
{
  echo -n "driver=qcow2,encrypt.key-secret=s,file.filename=$1"
  [ "$1" = "$base" ] || echo ",backing.encrypt.key-secret=s"
}

# must_be IMAGE RAW: so QEMU decrypts it.
must_be ()
{
  qemu-img check "${secret[@]}" --image-opts "$(opts "$1")"
  qemu-img convert "${secret[@]}" -O raw --image-opts "$(opts "$1")" "$tmp/out.raw"
  cmp "$tmp/out.raw" "$2"
}

for format in luks aes; do
  create="encrypt.format=$format,encrypt.key-secret=s"
  [ "$format" = aes ] || create+=",encrypt.iter-time=10"
  rm -f "$img" "$base"
  qemu-img create -q -f qcow2 "${secret[@]}" -o "$create" "$base" "$size"
  fill "$base" "$tmp/below.raw"
  qemu-img create -q -f qcow2 "${secret[@]}" -u \
    -o "$create,backing_file=$base,backing_fmt=qcow2" "$img" "$size"
  fill "$img" "$tmp/above.raw"
  must_be "$base" "$tmp/below.raw"
  must_be "$img" "$tmp/above.raw"
  "$abs_top_builddir/img/nbdkit-qcow2-img" commit "${secret[@]}" --image-opts "$(opts "$img")"
  must_be "$base" "$tmp/above.raw"
  must_be "$img" "$tmp/above.raw"
  # What is written now goes to other places than the keys.
  fill "$img" "$tmp/after.raw"
  must_be "$img" "$tmp/after.raw"
  must_be "$base" "$tmp/above.raw"
done
