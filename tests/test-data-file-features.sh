#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What goes together with an external data file: backing files, above and below it;
# discard=, detect-zeroes=, cache=, lazy refcounts, bitmaps, encryption.

. "${srcdir:-$(dirname "$0")}/functions.sh"
requires_tools

img="$tmp/a.qcow2" data="$tmp/a.data"
base="$tmp/base.raw"
random_file "$base" $((3 << 20))

judge ()
{
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
}

# serve CLUSTER-SIZE [PARAMETER...]
serve ()
{
  local cluster="$1"
  shift
  [ -n "${encrypted:-}" ] || qemu-img convert -f qcow2 -O raw "$img" "$tmp/model.raw"
  start_nbdkit file="$img" "$@"
  model random "$uri" "$tmp/model.raw" --seconds 0.3 --connections 3 \
    --cluster "$cluster" --trim "${trim:-zero}"
  stop_nbdkit
}

# With a backing file: what was never written is read from there.
for cluster in 512 64k; do
  rm -f "$img" "$data"
  make_image "$img" 4195328 \
    "data_file=$data,cluster_size=$cluster,backing_file=$base,backing_fmt=raw"
  random_file "$data" 4195328
  serve "$cluster"
  judge

  # As a backing file itself.
  make_image "$tmp/top.qcow2" 4195328 "backing_file=a.qcow2,backing_fmt=qcow2"
  start_nbdkit file="$tmp/top.qcow2"
  model verify "$uri" "$tmp/model.raw"
  nbdsh_run -c 'h.pwrite(b"top", 100000); h.flush()'
  stop_nbdkit
  judge
  rm -f "$tmp/top.qcow2"
done

# No space is given back, zeros are looked for, no page cache.
rm -f "$img" "$data"
make_image "$img" 4M "data_file=$data,data_file_raw=on"
trim=keep serve 64k discard=ignore cache=none
judge
cmp "$data" "$tmp/model.raw"
serve 64k detect-zeroes=unmap l2-cache=0
judge
cmp "$data" "$tmp/model.raw"

# Lazy refcounts: after a crash the metadata's references are counted, not the data's.
rm -f "$img" "$data"
make_image "$img" 4M "data_file=$data,lazy_refcounts=on"
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"x" * 100000, 1000000); h.flush()'
kill9_nbdkit main
serve 64k
judge

# Encrypted.
contents ()
{
  qemu-img convert --object secret,id=s,data=abc --image-opts -O raw \
    "driver=qcow2,encrypt.key-secret=s,file.filename=$img" "$1"
}
encrypted=yes
for raw in off on; do
  rm -f "$img" "$data"
  qemu-img create -q -f qcow2 --object secret,id=s,data=abc \
    -o "data_file=$data,data_file_raw=$raw,encrypt.format=luks" \
    -o encrypt.key-secret=s,encrypt.iter-time=10 "$img" 4M
  contents "$tmp/model.raw"
  trim=any serve 64k passphrase=abc
  contents "$tmp/as.raw"
  cmp "$tmp/as.raw" "$tmp/model.raw"
  qemu-img check --object secret,id=s,data=abc --image-opts \
    "driver=qcow2,encrypt.key-secret=s,file.filename=$img"
done
