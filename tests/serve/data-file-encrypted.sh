#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The data in an external data file can be encrypted.  (A raw data file then contains what
# QEMU would have written there: the encrypted disk.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2" data="$tmp/a.data"

contents ()
{
  qemu-img convert --object secret,id=s,data=abc --image-opts -O raw \
    "driver=qcow2,encrypt.key-secret=s,file.filename=$img" "$1"
}

for options in encrypt.format=luks,encrypt.iter-time=10,data_file_raw=off \
               encrypt.format=aes,data_file_raw=on; do
  rm -f "$img" "$data"
  qemu-img create -q -f qcow2 --object secret,id=s,data=abc \
    -o "data_file=$data,encrypt.key-secret=s,$options" "$img" 4M
  contents "$tmp/model.raw"
  start_nbdkit file="$img" passphrase=abc
  model random "$uri" "$tmp/model.raw" --seconds 0.5 --trim any
  stop_nbdkit
  contents "$tmp/as.raw"
  cmp "$tmp/as.raw" "$tmp/model.raw"
  qemu-img check --object secret,id=s,data=abc --image-opts \
    "driver=qcow2,encrypt.key-secret=s,file.filename=$img"
done
