#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# How the name of a backing file is resolved: as QEMU does it, relative to the
# directory of the overlay's name as it was given (a symbolic link to the overlay is not
# followed for this), whatever the server's working directory is.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

mkdir "$tmp/A" "$tmp/B" "$tmp/elsewhere"
for dir in A B; do
  printf "%65536s" '' | tr ' ' "$dir" > "$tmp/$dir/base.raw"
done
make_image "$tmp/A/real.qcow2" 64k "backing_file=base.raw,backing_fmt=raw"
ln -s ../A/real.qcow2 "$tmp/B/link.qcow2"

first_byte ()
{
  nbdsh_run -c 'print(h.pread(1, 0).decode())'
}

start_nbdkit file="$tmp/A/real.qcow2"
[ "$(first_byte)" = A ]
stop_nbdkit

# QEMU is the judge.
qemu-img convert -f qcow2 -O raw "$tmp/B/link.qcow2" "$tmp/qemu.raw"
[ "$(head -c 1 "$tmp/qemu.raw")" = B ]
start_nbdkit file="$tmp/B/link.qcow2"
[ "$(first_byte)" = B ]
stop_nbdkit

# Relative to the image, not to the working directory.
cd "$tmp/elsewhere"
start_nbdkit file=../A/real.qcow2
[ "$(first_byte)" = A ]
stop_nbdkit
cd "$tmp/A"
start_nbdkit real.qcow2
[ "$(first_byte)" = A ]
stop_nbdkit
cd "$tmp/.."

# Through a directory of its own, an absolute name, and with "file:" in front.
make_image "$tmp/elsewhere/up.qcow2" 64k \
  "backing_file=../B/base.raw,backing_fmt=raw"
make_image "$tmp/elsewhere/abs.qcow2" 64k \
  "backing_file=$tmp/B/base.raw,backing_fmt=raw"
make_image "$tmp/elsewhere/file.qcow2" 64k \
  "backing_file=file:$tmp/B/base.raw,backing_fmt=raw"
for img in up abs file; do
  start_nbdkit file="$tmp/elsewhere/$img.qcow2"
  [ "$(first_byte)" = B ]
  stop_nbdkit
done

# The next layer's name is relative to where that layer is.
make_image "$tmp/elsewhere/top.qcow2" 64k \
  "backing_file=../A/real.qcow2,backing_fmt=qcow2"
start_nbdkit file="$tmp/elsewhere/top.qcow2"
[ "$(first_byte)" = A ]
stop_nbdkit

# Not there: one line that names the missing file.
qemu-img create -q -u -f qcow2 -b missing.raw -F raw "$tmp/A/lost.qcow2" 64k
refused "missing\.raw" file="$tmp/A/lost.qcow2"
