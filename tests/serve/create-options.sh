#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# New images, with each option, are like those of qemu-img create: qemu-img info shows the
# same, qemu-img check finds nothing, the disk is empty, and both QEMU and the server that
# created it can write it.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# Of the image itself, without what may differ.
described ()
{
  qemu-img info --output=json "$1" | "$python" -c '
import json, sys
info = json.load(sys.stdin)
for key in "filename", "actual-size":
    del info[key]
info.pop("children", None)              # newer QEMU describes the files, too
def strip(node):
    # What is in the image file itself counts, not which file that is.
    if isinstance(node, dict):
        return {k: strip(v) for k, v in node.items() if k != "uuid"}
    return node
print(json.dumps(strip(info), indent=1, sort_keys=True))'
}

mkdir "$tmp/ours" "$tmp/qemu"
number=0

# same SIZE QEMU-OPTIONS [PARAMETER...]: in directories of their own, so that names are
# the same.
same ()
{
  local size="$1" qemu="$2" img
  shift 2

  number=$((number + 1))
  img="$number.qcow2"
  (cd "$tmp/qemu" && make_image "$img" "$size" "$qemu")
    (cd "$tmp/ours" &&
     "$NBDKIT" -U - "$PLUGIN" "$img" create="$size" "$@" --run : 2>"$tmp/err") || {
    cat "$tmp/err"
    false
  }
  described "$tmp/qemu/$img" > "$tmp/qemu.info"
  described "$tmp/ours/$img" > "$tmp/ours.info"
  diff -u "$tmp/qemu.info" "$tmp/ours.info"
  (cd "$tmp/ours"
   check_clean "$img"
   # The whole disk, and then a piece in the middle of things.
   qemu-img compare "$img" "$tmp/qemu/$img"
   if [ "$size" != 0 ]; then
     qemu-io -f qcow2 -c 'write -P 0x5a 12345 200000' -c 'read -P 0x5a 12345 200000' \
       -c 'read -P 0 0 12345' -c 'read -P 0 212345 100000' "$img"
   fi
   check_clean "$img")
}

same 10M ''
same 0 ''
same 1000001 ''                         # rounded up to sectors
same 1T ''
same 100T 'cluster_size=2M' cluster-size=2M
same 2G 'cluster_size=512' cluster-size=512
for cluster in 512 1k 4k 8k 2M; do
  same 70M "cluster_size=$cluster" cluster-size="$cluster"
  same 70M "cluster_size=$cluster,compat=0.10" cluster-size="$cluster" compat=0.10
done
same 10M compat=v2 compat=v2
same 10M compat=v3 compat=v3
same 10M compat=1.1 compat=1.1
for bits in 1 2 4 8 16 32 64; do
  same 10M "refcount_bits=$bits" refcount-bits="$bits"
done
same 10M lazy_refcounts=on lazy-refcounts=true
same 10M lazy_refcounts=off lazy-refcounts=off
same 10M compression_type=zlib compression-type=zlib
same 10M compression_type=zstd compression-type=zstd
same 10M extended_l2=on extended-l2=true
same 10M extended_l2=on,cluster_size=16k extended-l2=true cluster-size=16K

same 10M data_file=a.raw data-file=a.raw
same 10M data_file=b.raw,data_file_raw=on data-file=b.raw data-file-raw=true
same 10M data_file=c.raw,extended_l2=on,lazy_refcounts=on,compression_type=zstd \
  data-file=c.raw extended-l2=on lazy-refcounts=on compression-type=zstd
same 10M data_file=d.raw,data_file_raw=on,extended_l2=on,cluster_size=32k \
  data-file=d.raw data-file-raw=true extended-l2=true cluster-size=32K
same 1M data_file=e.raw,preallocation=falloc data-file=e.raw preallocation=falloc
[ "$(allocated_kib "$tmp/ours/e.raw")" -ge 1024 ]
same 1M data_file=f.raw,preallocation=full data-file=f.raw preallocation=full
[ "$(allocated_kib "$tmp/ours/f.raw")" -ge 1024 ]

# In a raw data file lies the disk.
(cd "$tmp/ours"
 for raw in b d; do
   img=$(grep -l "$raw.raw" ./*.qcow2)
   qemu-img compare -f qcow2 -F raw "$img" "$raw.raw"
   printf seen | dd of="$raw.raw" bs=1 seek=7000000 conv=notrunc status=none
   qemu-img compare -f qcow2 -F raw "$img" "$raw.raw"
 done)

# Where the data file is named from another directory, its whole path is in the header.
(cd "$tmp"
 "$NBDKIT" -U - "$PLUGIN" ours/away.qcow2 create=1M data-file=g.raw --run : || :)
check_clean "$tmp/ours/away.qcow2"
[ "$(file_size "$tmp/g.raw")" = 1048576 ]
grep -aqF "$tmp/g.raw" "$tmp/ours/away.qcow2"

# An empty image takes next to no space, and is not what QEMU would be shocked by.
(cd "$tmp" && "$NBDKIT" -U - "$PLUGIN" small.qcow2 create=1T cluster-size=2M --run :)
[ "$(allocated_kib "$tmp/small.qcow2")" -le 64 ]
[ "$(stat -c %a "$tmp/small.qcow2")" = "$(printf %o $((0644 & ~$(umask))))" ]

# It is served at once, and all of the data and the image are right afterwards.
start_nbdkit file="$tmp/served.qcow2" create=32M cluster-size=4K
model random "$uri" "$tmp/model.raw" --seconds 1 --connections 2 --cluster 4096
stop_nbdkit
check_clean "$tmp/served.qcow2"
same_as_raw "$tmp/served.qcow2" "$tmp/model.raw"
"$NBDKIT" "$PLUGIN" --dump-plugin | grep -x qcow2_create=yes
