#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Features that can be combined with an external data file: backing files, above and below
# it; discard=, detect-zeroes=, cache=, lazy refcounts, bitmaps.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
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
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/model.raw"
  start_nbdkit file="$img" "$@"
  model random "$uri" "$tmp/model.raw" --seconds 0.3 --connections 3 \
    --cluster "$cluster" --trim "${trim:-zero}"
  stop_nbdkit
}

# With a backing file: what was never written is read from there.
sample 1 512 64k
for cluster in "${sample[@]}"; do
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

# With something below it, the data file is no raw image any more, and the image does not
# say so.
start_nbdkit -r -- file="$img" backing="$base" backing-format=raw
nbdsh_run -c 'h.pread(1, 0)'
stop_nbdkit
qemu-img info "$img" | grep 'data file raw: true'
start_nbdkit file="$img" backing="$base" backing-format=raw
nbdsh_run -c 'h.pwrite(b"x", 0); h.flush()'
stop_nbdkit
qemu-img info "$img" | grep 'data file raw: false'
check_clean "$img"

# A raw data file that is too short is made complete.
rm -f "$img" "$data"
make_image "$img" 4M "data_file=$data,data_file_raw=on"
truncate -s 1000000 "$data"
start_nbdkit -r -- file="$img"
nbdsh_run -c 'assert h.pread(4 << 20, 0) == bytes(4 << 20)'
stop_nbdkit
[ "$(file_size "$data")" -eq 1000000 ]
serve 64k
judge
cmp "$data" "$tmp/model.raw"

# Space is given back, and nbdinfo --map knows.
for raw in off on; do
  rm -f "$img" "$data"
  make_image "$img" 4M "data_file=$data,data_file_raw=$raw"
  start_nbdkit file="$img"
  nbdsh_run -c - <<'PY'
h.pwrite(b"x" * (4 << 20), 0)
h.flush()
h.trim(1 << 20, 0)
h.zero(1 << 20, 1 << 20)
h.flush()
PY
  nbdinfo --map "$uri" > "$tmp/map"
  "$python" - "$tmp/map" <<'PY'
import sys
for line in open(sys.argv[1]):
    start, length, kind = [int(w) for w in line.split()[:3]]
    assert (start >= 2 << 20) == (kind == 0), line
PY
  stop_nbdkit
  [ "$(allocated_kib "$data")" -le 2100 ]
done

# Persistent bitmaps record what happens to the data, also where only the data file
# changes.
for raw in off on; do
  rm -f "$img" "$data"
  make_image "$img" 4M "data_file=$data,data_file_raw=$raw"
  qemu-img bitmap --add "$img" all
  start_nbdkit file="$img"
  nbdsh_run -c 'h.pwrite(b"x", 1 << 20)' -c 'h.zero(65536, 2 << 20)' \
    -c 'h.pwrite(b"x", 3 << 20); h.trim(65536, 3 << 20)'
  stop_nbdkit
  check_clean "$img"
  marked "$img" all > "$tmp/dirty"
  diff "$tmp/dirty" - <<'END'
1048576 65536
2097152 65536
3145728 65536
END
done

# Lazy refcounts: after a crash the metadata's references are counted, not the data's.
rm -f "$img" "$data"
make_image "$img" 4M "data_file=$data,lazy_refcounts=on"
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"x" * 100000, 1000000); h.flush()'
kill9_nbdkit main
serve 64k
judge
