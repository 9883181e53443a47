#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The format of a backing file is the one that the image or backing-format= states, and is
# never guessed: a guest that writes a qcow2 header to its raw disk must not make the
# server follow it.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# A raw disk whose contents look like a qcow2 image that names another file.
printf 'secret' > "$tmp/secret"
truncate -s 64k "$tmp/secret"
make_image "$tmp/base" 64k "backing_file=secret,backing_fmt=raw"
cp "$tmp/base" "$tmp/model.raw"
truncate -s 256k "$tmp/model.raw"

img="$tmp/overlay.qcow2"
make_image "$img" 256k "backing_file=base,backing_fmt=raw"
start_nbdkit file="$img"
model verify "$uri" "$tmp/model.raw"
stop_nbdkit

# The format is the first extension that qemu-img writes: make it another one.
cp "$img" "$tmp/unsaid.qcow2"
header_patch "$tmp/unsaid.qcow2" 112 I 0x12345678
refused 'format' file="$tmp/unsaid.qcow2"
start_nbdkit file="$tmp/unsaid.qcow2" backing-format=raw
model verify "$uri" "$tmp/model.raw"
stop_nbdkit
start_nbdkit file="$tmp/unsaid.qcow2" backing-format=qcow2
nbdsh_run -c 'assert h.pread(6, 0) == b"secret"'
stop_nbdkit

# Formats that we don't have.
cp "$img" "$tmp/vmdk.qcow2"
header_patch "$tmp/vmdk.qcow2" 116 I 4 120 s 766d646b
refused 'vmdk' file="$tmp/vmdk.qcow2"
refused 'backing-format' file="$img" backing-format=vmdk

# Another file: the format is still what the image says, unless we are told.
truncate -s 256k "$tmp/other.raw"
printf 'other' | dd of="$tmp/other.raw" conv=notrunc status=none
refused 'format' file="$tmp/unsaid.qcow2" backing="$tmp/other.raw"
start_nbdkit file="$tmp/unsaid.qcow2" backing="$tmp/other.raw" backing-format=raw
nbdsh_run -c 'assert h.pread(5, 0) == b"other"'
stop_nbdkit
start_nbdkit file="$img" backing="$tmp/other.raw"
nbdsh_run -c 'assert h.pread(5, 0) == b"other"'
stop_nbdkit

# Names that are no paths.  (A path within JSON is relative to the current directory.)
qemu-img create -q -u -f qcow2 -F raw "$tmp/odd.qcow2" 64k \
  -b 'json:{"driver":"raw","file":{"driver":"file","filename":"secret"}}'
refused "$PWD/secret: cannot open" file="$tmp/odd.qcow2"
for name in nbd:localhost:1 'nbd+unix:///?socket=x' http://localhost/x fat:/tmp; do
  qemu-img create -q -u -f qcow2 -b "$name" -F raw "$tmp/odd.qcow2" 64k
  refused 'backing' file="$tmp/odd.qcow2"
done
