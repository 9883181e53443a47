#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What nbdkit-qcow2-img rebase refuses, in one line, before anything has changed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

cd ours
qemu-img create -q -f raw a.raw 4M
cp a.raw b.raw
qemu-io -f raw -c 'write -P 1 0 64k' a.raw > io.log
qemu-img create -q -f qcow2 -b a.raw -F raw top.qcow2

# refused PATTERN IMAGE OPTION...
refused ()
{
  img_untouched "$2" "$1" rebase "${@:3}" "$2"
}
# With copying, and without.
refused_always ()
{
  refused "$@"
  refused "$@" -u
}

# --- names ---

refused 'missing' top.qcow2 -b missing -F raw
refused 'only files and NBD are supported' top.qcow2 -b http://localhost/disk -F raw
refused 'b[.]raw.*not.*qcow2' top.qcow2 -b b.raw -F qcow2
refused 'requires the name of a backing file' top.qcow2 -b '' -F raw
refused_always 'users and keys must not be in an image' top.qcow2 \
  -b 'nbds://me@localhost/disk' -F raw

# No header can have these.
deep=$(printf '%0600d' 0)
refused_always 'the name of the backing file has more than 1023 bytes' top.qcow2 \
  -b "${deep//0/./}b.raw" -F raw
ln -s b.raw $'new\nline'
refused_always 'control character 0x0a' top.qcow2 -b $'new\nline' -F raw

# Chains that lead back.
qemu-img create -q -f qcow2 -b top.qcow2 -F qcow2 over.qcow2
for name in over.qcow2 top.qcow2 ./top.qcow2 "$PWD/top.qcow2"; do
  refused 'loop' top.qcow2 -b "$name" -F qcow2
done
refused 'cannot be its own backing file' top.qcow2 -b ./top.qcow2 -F qcow2 -u
refused 'cannot be its own backing file' top.qcow2 -b over.qcow2 -F qcow2 -u

# A header without space.
qemu-img create -q -f qcow2 -o cluster_size=512 -b a.raw -F raw small.qcow2
refused_always 'has no space for' small.qcow2 -b "$(printf '%0200d' 0 | sed 's,0,./,g')a.raw" \
  -F raw

# --- images ---

to=(-b b.raw -F raw)
cp top.qcow2 snap.qcow2
qemu-img snapshot -c s snap.qcow2
refused 'cannot be rebased: it has internal snapshots' snap.qcow2 "${to[@]}"
cp top.qcow2 corrupt.qcow2
header_patch corrupt.qcow2 72 Q '|2'
refused 'cannot be rebased: the image is marked corrupt: "check -r all" may help' corrupt.qcow2 "${to[@]}"
refused 'cannot be changed: the image is marked corrupt: "check -r all"' corrupt.qcow2 "${to[@]}" -u
qemu-img create -q -f qcow2 -o data_file=raw.data,data_file_raw=on raw.qcow2 4M
refused_always 'cannot be rebased: it has a raw external data file' raw.qcow2 "${to[@]}"
start_nbdkit -r -- top.qcow2
refused_always 'top[.]qcow2.*lock' top.qcow2 "${to[@]}"
stop_nbdkit
