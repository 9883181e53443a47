#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img amend changes the version and the features of an image, as "qemu-img amend"
# does: afterwards both images show the same disk, and its snapshots, and have the same
# features, and qemu-img check finds nothing.  What uses anything of version 3 does not
# become version 2, and is named.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/random.sh"
. "$srcdir/lib/img.sh"

cd ours

amend ()
{
  img amend -q -o "$2" "$1"
}

# refused PATTERN IMAGE OPTIONS
refused ()
{
  img_untouched "$2" "$1" amend -o "$3" "$2"
}

# What qemu-img info says of version and features.
features ()
{
  qemu-img info -f qcow2 --output=json "$1" |
    grep -E '"(compat|lazy-refcounts|data-file-raw|refcount-bits|backing-filename)":'
}

# patch_snapshot IMAGE 0: takes the extra data from the first snapshot.
# patch_snapshot IMAGE 1 BYTES: gives it that much VM state.
patch_snapshot ()
{
  "$python" - "$@" <<'PY'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    f.seek(64)
    at, = struct.unpack(">Q", f.read(8))
    f.seek(at)
    entry = bytearray(f.read(512))
    extra, = struct.unpack_from(">I", entry, 36)
    assert extra >= 16
    if sys.argv[2] == "0":
        entry[36:40] = bytes(4)
        entry = entry[:40] + entry[40 + extra:] + bytes(extra)
    else:
        struct.pack_into(">Q", entry, 40, int(sys.argv[3]))
    f.seek(at)
    f.write(entry)
PY
}
# The extra data of the first snapshot.
snapshot_extra ()
{
  "$python" - "$1" <<'PY'
import struct, sys
with open(sys.argv[1], "rb") as f:
    f.seek(64)
    at, = struct.unpack(">Q", f.read(8))
    f.seek(at)
    entry = f.read(512)
    extra, = struct.unpack_from(">I", entry, 36)
    assert extra == 24
    print(*struct.unpack_from(">QQQ", entry, 40))
PY
}

qemu-img create -q -f raw base.raw 3M
qemu-io -f raw -c 'write -P 1 0 1M' -c 'write -P 2 2M 64k' base.raw > io.log
declare compat cluster backing what versions
sample 3 {1..8}
for round in "${sample[@]}"; do
  rm -f ours.qcow2 theirs.qcow2
  any compat 0.10 1.1
  any cluster 512 4k 64k 2M
  any backing '-b base.raw -F raw' ''
  # shellcheck disable=SC2086
  qemu-img create -q -f qcow2 -o "compat=$compat,cluster_size=$cluster" $backing \
    ours.qcow2 4M
  if [ "$cluster" != 2M ]; then qemu-io -f qcow2 -c 'write -c -P 4 1M 64k' ours.qcow2; fi
  for ((i = RANDOM % 6; i > 0; i--)); do
    at=$((RANDOM % 4000))k
    any what 'write -z' 'write -z -u' 'write -P 5' discard
    io ours.qcow2 "$what $at 90k" "write -P 3 $((RANDOM % 2))M 64k"
  done
  cp ours.qcow2 theirs.qcow2
  qemu-img convert -f qcow2 -O raw ours.qcow2 want.raw
  any versions '0.10 1.1' '1.1 0.10'
  for to in $versions; do
    lazy=off
    if [ "$to" = 1.1 ]; then any lazy on off; fi
    echo "round $round: $compat to $to, lazy refcounts $lazy"
    qemu-img amend -q -f qcow2 -o "compat=$to,lazy_refcounts=$lazy" theirs.qcow2
    amend ours.qcow2 "compat=$to,lazy_refcounts=$lazy"
    check_clean ours.qcow2
    qemu-img compare -q -f qcow2 -F raw ours.qcow2 want.raw
    diff <(features ours.qcow2) <(features theirs.qcow2)
  done
  # It goes on.
  qemu-io -f qcow2 -c 'write -P 9 1M 100k' -c 'write -z 0 64k' ours.qcow2 > io.log
  qemu-io -f raw -c 'write -P 9 1M 100k' -c 'write -z 0 64k' want.raw > io.log
  check_clean ours.qcow2
  qemu-img compare -q -f qcow2 -F raw ours.qcow2 want.raw
done

# Snapshots and bitmaps are for version 3, too; encryption; what is not named stays.
qemu-img create -q -f qcow2 -o compat=0.10 a.qcow2 4M
qemu-io -f qcow2 -c 'write -P 1 0 1M' a.qcow2 > io.log
qemu-img snapshot -c s a.qcow2
amend a.qcow2 compat=1.1
qemu-img snapshot -l a.qcow2 | grep -w s
qemu-img bitmap --add a.qcow2 b
amend a.qcow2 lazy_refcounts=on
features a.qcow2 | grep '"lazy-refcounts": true'
amend a.qcow2 compat=v3
features a.qcow2 | grep '"lazy-refcounts": true'
qemu-img info a.qcow2 | grep 'name: b'
check_clean a.qcow2
secret=(--object "secret,id=s,data=abc")
# luks FILE: what opens it.
luks ()
{
  echo "driver=qcow2,file.filename=$1,encrypt.key-secret=s"
}
encrypt=encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10
qemu-img convert "${secret[@]}" -f raw -O qcow2 -o $encrypt base.raw luks.qcow2
img amend "${secret[@]}" --image-opts -o compat=0.10 "$(luks luks.qcow2)"
features luks.qcow2 | grep '"compat": "0.10"'
qemu-img compare -q "${secret[@]}" --image-opts "$(luks luks.qcow2)" \
  driver=raw,file.filename=base.raw
# A raw data file becomes one whose contents only the image knows; never the other way.
qemu-img create -q -f qcow2 -o data_file=d.raw,data_file_raw=on d.qcow2 1M
amend d.qcow2 data_file_raw=on
features d.qcow2 | grep '"data-file-raw": true'
amend d.qcow2 data_file_raw=off
features d.qcow2 | grep '"data-file-raw": false'
check_clean d.qcow2
refused 'only a new image can get a raw data file' d.qcow2 data_file_raw=on

# --- what is refused ---

# stays OPTIONS WHY: an image with these options of qemu-img create stays version 3.
stays ()
{
  rm -f v3.qcow2 v3.data
  qemu-img create -q -f qcow2 ${1:+-o "$1"} v3.qcow2 1M
  if [ -n "${3-}" ]; then "${@:3}" v3.qcow2; fi
  refused "cannot be changed to version 2: $2" v3.qcow2 compat=0.10
}
stays refcount_bits=8 'its refcounts do not have 16 bits'
stays extended_l2=on 'it has subclusters'
stays compression_type=zstd 'its compression type is not zlib'
stays data_file=v3.data 'it has an external data file'
snapshot_of_other_size ()
{
  qemu-img snapshot -c s "$1"
  qemu-img resize -q "$1" 2M
}
stays '' 'an internal snapshot is of a disk of another size' snapshot_of_other_size
large_state ()
{
  qemu-img snapshot -c s "$1"
  patch_snapshot "$1" 1 $((1 << 32))
}
stays '' 'an internal snapshot has a VM state of 4 GiB or more' large_state
qemu-img create -q -f qcow2 m.qcow2 1M
qemu-img bitmap --add m.qcow2 b
refused 'cannot be changed to version 2: it has persistent bitmaps' m.qcow2 compat=0.10
qemu-img create -q "${secret[@]}" -f qcow2 -o $encrypt -b base.raw -F raw zero.qcow2
qemu-io "${secret[@]}" --image-opts "$(luks zero.qcow2)" -c 'write -z 0 1M' > io.log
img_untouched zero.qcow2 'it is encrypted, and has zero clusters over a backing file' \
  amend "${secret[@]}" --image-opts -o compat=0.10 "$(luks zero.qcow2)"

# --- snapshots ---

# An old snapshot, without the size of the disk, gets it, as with QEMU.
qemu-img create -q -f qcow2 -o compat=0.10 old.qcow2 1M
qemu-img snapshot -c s old.qcow2
patch_snapshot old.qcow2 0
cp old.qcow2 new.qcow2
amend new.qcow2 compat=1.1
check_clean new.qcow2
[ "$(snapshot_extra new.qcow2)" = "0 $((1 << 20)) $(printf %u -1)" ]
qemu-img amend -f qcow2 -o compat=1.1 old.qcow2
[ "$(snapshot_extra old.qcow2)" = "$(snapshot_extra new.qcow2)" ]
qemu-img create -q -f qcow2 -o compat=0.10 old.qcow2 1M

# The other way, the zeros of snapshots are replaced, too.
for backing in '' '-b base.raw -F raw'; do
  rm -f ours.qcow2
  # shellcheck disable=SC2086
  qemu-img create -q -f qcow2 -o cluster_size=4k $backing ours.qcow2 4M
  qemu-io -f qcow2 -c 'write -z 0 128k' -c 'write -P 4 1M 64k' ours.qcow2 > io.log
  qemu-img snapshot -c first ours.qcow2
  qemu-img snapshot -c same ours.qcow2
  qemu-io -f qcow2 -c 'write -P 5 64k 64k' -c 'write -z 1M 4k' -c 'write -z 3M 8k' \
    ours.qcow2 > io.log
  qemu-img snapshot -c last ours.qcow2
  # What a snapshot has as a zero cluster, keeping its place, is data of the disk alone.
  qemu-io -f qcow2 -c 'write -P 6 2M 64k' ours.qcow2 > io.log
  qemu-img snapshot -c data ours.qcow2
  qemu-io -f qcow2 -c 'write -z 2M 64k' ours.qcow2 > io.log
  qemu-img snapshot -c zero ours.qcow2
  qemu-img snapshot -a data ours.qcow2
  qemu-img snapshot -d data ours.qcow2
  for snapshot in first same last zero; do
    qemu-img convert -f qcow2 -l "$snapshot" -O raw ours.qcow2 "$snapshot.raw"
  done
  qemu-img convert -f qcow2 -O raw ours.qcow2 want.raw
  amend ours.qcow2 compat=0.10
  features ours.qcow2 | grep -q '"compat": "0.10"'
  check_clean ours.qcow2
  qemu-img compare -q -f qcow2 -F raw ours.qcow2 want.raw
  for snapshot in first same last zero; do
    qemu-img convert -f qcow2 -l "$snapshot" -O raw ours.qcow2 is.raw
    cmp is.raw "$snapshot.raw"
    qemu-img snapshot -a "$snapshot" ours.qcow2
    check_clean ours.qcow2
    qemu-img compare -q -f qcow2 -F raw ours.qcow2 "$snapshot.raw"
  done
  qemu-io -f qcow2 -c 'write -P 9 0 4M' ours.qcow2 > io.log
  amend ours.qcow2 compat=1.1
  qemu-img convert -f qcow2 -l first -O raw ours.qcow2 is.raw
  cmp is.raw first.raw
  check_clean ours.qcow2
done

# --- features that do not go together ---

refused 'lazy refcounts require version 3' old.qcow2 lazy_refcounts=on
refused 'require version 3: add compat=1.1' old.qcow2 refcount_bits=8
for bits in 3 63; do
  refused 'must be a power of two, up to 64' old.qcow2 compat=1.1,refcount_bits=$bits
done

# --- refcounts of another width ---

# In one step with another version.
make_image two.qcow2 1M compat=0.10
amend two.qcow2 compat=1.1,refcount_bits=64
features two.qcow2 | grep -q '"refcount-bits": 64'
amend two.qcow2 compat=0.10,refcount_bits=16
features two.qcow2 | grep -q '"compat": "0.10"'
check_clean two.qcow2

sample 2 512 4k 64k 2M
for cluster in "${sample[@]}"; do
  rm -f wide.qcow2
  qemu-img create -q -f qcow2 -o "cluster_size=$cluster,lazy_refcounts=on" wide.qcow2 40M
  qemu-io -f qcow2 -c 'write -P 1 0 3M' -c 'write -P 2 30M 64k' wide.qcow2 > io.log
  qemu-img snapshot -c s wide.qcow2
  qemu-img bitmap --add wide.qcow2 b
  qemu-io -f qcow2 -c 'write -P 3 1M 1M' wide.qcow2 > io.log
  features wide.qcow2 > before
  size=$(stat -c %s wide.qcow2)
  qemu-img convert -f qcow2 -O raw wide.qcow2 want.raw
  # (qemu-img amend 7.2 did not end with such an image.)
  for bits in 64 2 8 32 4 16; do
    amend wide.qcow2 refcount_bits=$bits
    check_clean wide.qcow2
    diff <(features wide.qcow2) <(sed "s/bits\": 16/bits\": $bits/" before)
    qemu-img compare -q -f qcow2 -F raw wide.qcow2 want.raw
  done
  # The space of the old ones is used again.
  [ "$(stat -c %s wide.qcow2)" -le "$((size + (40 << 20)))" ]
  qemu-io -f qcow2 -c 'write -P 9 5M 1M' wide.qcow2 > io.log
  check_clean wide.qcow2
  # The snapshot and the disk share clusters.
  refused 'has 2 references, too many for refcounts of 1 bit' wide.qcow2 refcount_bits=1
  qemu-img bitmap --remove wide.qcow2 b
  qemu-img snapshot -a s wide.qcow2
  qemu-img snapshot -d s wide.qcow2
  amend wide.qcow2 refcount_bits=1
  check_clean wide.qcow2
done
# On a device, or behind NBD, where the file does not grow.
truncate -s +8M wide.qcow2
PLUGIN=file start_nbdkit wide.qcow2
amend "$uri" refcount_bits=32
stop_nbdkit
features wide.qcow2 | grep -q '"refcount-bits": 32'
check_clean wide.qcow2
header_patch m.qcow2 72 Q '|2'
refused 'the image is marked corrupt' m.qcow2 lazy_refcounts=on
