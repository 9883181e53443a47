#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Options for new images that are invalid, or cannot be combined, are refused with one
# line that names them, and no file is created.  Existing files are never touched.  QEMU
# refuses the same options.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
cd "$tmp"
mkdir dir
random_file base.raw 1048576

# Nothing was left behind, under whatever name.
nothing ()
{
  [ -z "$(ls -A dir)" ] || fail "there is something: $(ls -A dir)"
}

# no PATTERN PARAMETER...
no ()
{
  refused "$1" dir/new.qcow2 "${@:2}"
  nothing
}

# neither PATTERN QEMU-OPTIONS SIZE PARAMETER...
neither ()
{
  no "$1" create="$3" "${@:4}"
  # Not asked of QEMU what is not its option.
  if qemu-img create -q -f qcow2 -o "$2" dir/qemu.qcow2 "$3"; then
    fail "qemu-img makes an image with $2"
  fi
  rm -f dir/qemu.qcow2 dir/data
}

for cluster in 513 256 4M 0 1000; do
  neither 'cluster size.*power of two' "cluster_size=$cluster" 1M cluster-size=$cluster
done
for bits in 0 3 128 17; do
  neither 'width of refcounts' "refcount_bits=$bits" 1M refcount-bits=$bits
done
old='compat=0.10'
neither 'refcounts.*compat 1.1' "$old,refcount_bits=8" 1M $old refcount-bits=8
neither 'lazy refcounts.*compat 1.1' "$old,lazy_refcounts=on" 1M $old lazy-refcounts=on
neither 'extended L2.*compat 1.1' "$old,extended_l2=on" 1M $old extended-l2=on
neither 'compression type.*compat 1.1' "$old,compression_type=zstd" 1M $old \
  compression-type=zstd
neither 'data file.*compat 1.1' "$old,data_file=dir/data" 1M $old data-file=dir/data
neither 'extended L2.*16K' "cluster_size=8k,extended_l2=on" 1M cluster-size=8k \
  extended-l2=on
neither 'data-file-raw=.*data-file=' "data_file_raw=on" 1M data-file-raw=on
below=(backing-file="$PWD/base.raw" backing-format=raw)
qemu_below="backing_file=$PWD/base.raw,backing_fmt=raw"
neither 'raw data file.*backing file' \
  "data_file=dir/data,data_file_raw=on,$qemu_below" 1M \
  data-file=dir/data data-file-raw=on "${below[@]}"
for preallocation in metadata falloc full; do
  neither 'preallocation.*extended L2' "preallocation=$preallocation,$qemu_below" 1M \
    preallocation=$preallocation "${below[@]}"
done

# The largest disks: one sector more is too much.
neither 'a disk of .*too large.*clusters' cluster_size=512 137438953984 cluster-size=512
neither 'a disk of .*too large' '' 4503599627371008
neither 'a disk of .*too large' extended_l2=on 2251799813685760 extended-l2=on
neither 'a disk of .*too large' cluster_size=2M 2305843009213694464 cluster-size=2M
# Of preallocated ones, the refcounts must fit.
no 'preallocation .metadata.*refcount table.*larger clusters' create=128G cluster-size=512 \
  preallocation=metadata
no 'preallocation .metadata.*refcount table' create=64G cluster-size=512 \
  preallocation=metadata refcount-bits=64
"$NBDKIT" -U - "$PLUGIN" dir/large.qcow2 create=128G cluster-size=512 --run :
"$NBDKIT" -U - "$PLUGIN" dir/larger.qcow2 create=2E cluster-size=2M --run :
rm dir/large*.qcow2

# Ours alone.
no 'encrypted image has no raw data file.*would contain encrypted' create=1M \
  encrypt=luks passphrase=x iter-time=1 \
  data-file=dir/data data-file-raw=true
no 'preallocation .*compat 1.1' create=1M encrypt=luks passphrase=x iter-time=1 \
  compat=0.10 preallocation=metadata
no 'encrypt=luks.*passphrase=' create=1M encrypt=luks
no 'encrypt=luks.*passphrase=' create=1M encrypt=luks passphrase=
no 'snapshot=' create=1M snapshot=x
no 'untrusted=' create=1M untrusted=true
no 'backing=PATH.*backing-file=' create=1M backing="$PWD/base.raw"
no 'backing=deny.*backing-file=' create=1M backing=deny "${below[@]}"
no 'create=auto.*backing-file=' create=auto
no 'create= was given more than once' create=1M create=1M
no 'data-file=' create=1M data-file=dir/new.qcow2
for key in encrypt compat preallocation compression-type; do
  for value in '' nonsense; do
    no "$key=" create=1M $key=$value
  done
done
for value in 0 60001; do
  no 'iter-time=' create=1M iter-time=$value
done
no 'create=' create=
no 'create=' create=-1
no 'create=' create=9E
no 'create=' create=10Q
no 'extended-l2=' create=1M extended-l2=maybe

# shellcheck disable=SC2086 # what is long is several words
{
# What is known before is said before: nothing is made, however long that would take.
long="create=1T preallocation=full cluster-size=2M"
no 'compress=on.*encrypt=luks' $long compress=on encrypt=luks passphrase=x iter-time=1
no 'compress=on.*data-file=' $long compress=on data-file=dir/data
no 'compat=0.10.*bitmap-add=.*version 2' $long compat=0.10 bitmap-add=b
no 'snapshot-apply=.*new image' $long snapshot-apply=s
no 'snapshot-delete=.*new image' $long snapshot-delete=s
no 'bitmap-clear=.*new image' $long bitmap-clear=b
no 'bitmap-remove=.*new image' $long bitmap-remove=b
no 'bitmap-add=b: it is added twice' $long bitmap-add=b bitmap-add=c bitmap-add=b
no 'snapshot-create=.*data-file=' $long data-file=dir/data snapshot-create=s
no 'resize=.*shrink=true' $long resize=512G
no 'resize=.*shrink=true' $long resize=+1G resize=-2G
no 'resize=.*multiple of 512' $long resize=100
no 'resize=.*greater than 0' $long resize=-1T shrink=true
no 'resize=.*too large' $long resize=+7E resize=+7E resize=+7E
no 'snapshot-create=.*not UTF-8' $long snapshot-create=$'\xff'
no 'bitmap-add=.*1023' $long bitmap-add="$(printf %01024d 0)"
no 'iter-time=.*encrypt=luks' $long iter-time=10
no 'shrink=.*resize=' $long shrink=true
no 'check-report=.*check=' $long check-report="$tmp/report"
}

# What is found only with the new image makes that go again, with its data file.
for data in '' data-file=dir/data; do
  no 'more than 512M' create=10T bitmap-add=b bitmap-granularity=512 $data
  no 'nosuchdir' create=1M stats="$tmp/nosuchdir/stats" $data
  no 'nosuchdir' create=1M check=quick check-report="$tmp/nosuchdir/report" $data
  # The image is nothing that statistics may replace.
  no 'new.qcow2.*not a report' create=1M stats=dir/new.qcow2 $data
  no 'multiple of 512' create=1M resize=5000001 $data
done
no 'version 2 with snapshots' create=1M compat=0.10 snapshot-create=s resize=2M
no 'version 2.*snapshots' create=1M compat=0.10 snapshot-create=s resize=2M \
  snapshot-create=t
# With the fault mended the same command does what it should.
"$NBDKIT" -U - "$PLUGIN" dir/new.qcow2 create=1M data-file=dir/data resize=2M --run :
[ "$(stat -c %s dir/data)" = 2097152 ]
rm dir/new.qcow2 dir/data
nothing
# Without create=, on an image that is there.
make_image there.qcow2 1M
for option in cluster-size=64K compat=1.1 refcount-bits=16 preallocation=off \
              extended-l2=off lazy-refcounts=off compression-type=zlib encrypt=luks \
              backing-file=base.raw data-file-raw=off; do
  refused "${option%%=*}=.* requires create=" there.qcow2 "$option"
done
refused 'iter-time= requires encrypt=luks' there.qcow2 iter-time=10

# What exists stays: images, other files, links to nowhere, directories.
touch dir/empty
ln -s nowhere dir/link
mkdir dir/dir
for name in ../there.qcow2 ../base.raw empty link dir; do
  before=$(stat -c '%i %s %y' "dir/$name")
  for preallocation in off full; do
    refused 'exists' "dir/$name" create=1M preallocation=$preallocation
    refused 'exists' dir/new.qcow2 create=1M data-file="dir/$name" \
      preallocation=$preallocation
  done
  [ "$(stat -c '%i %s %y' "dir/$name")" = "$before" ]
done
[ ! -e dir/nowhere ]
rm -r dir/empty dir/link dir/dir
nothing

# Where nothing can be made.
refused 'nosuchdir.*No such file' nosuchdir/new.qcow2 create=1M
refused 'base.raw/new.qcow2' base.raw/new.qcow2 create=1M
refused '/proc/new.qcow2' /proc/new.qcow2 create=1M
