#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# create= on a block device or an NBD export: only if all of it reads as zeros, or with
# overwrite=true.  Then the guest reads zeros, whatever was there before.  What is refused
# changes nothing; what fails later leaves no image.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_namespace

size=$((24 << 20))

# old_data: the device's file has no zeros.
old_data ()
{
  "$python" -c 'import sys
f = open(sys.argv[1], "r+b")
f.write(b"old data" * (int(sys.argv[2]) // 8))' "$back" "$size"
  sync_device
}

zeros ()
{
  truncate -s 0 "$back"
  truncate -s "$size" "$back"
  sync_device
}

is_zeros ()
{
  sync_device
  cmp -n "$size" "$back" /dev/zero
}

# reads_zeros MEGABYTES: so does the guest, from one end to the other.
reads_zeros ()
{
  sync_device
  truncate -s "${1}M" "$tmp/zeros"
  check_clean "$back"
  same_as_raw "$back" "$tmp/zeros"
}

create ()
{
  start_and_end "file=$device" "${how[@]}" "$@"
}

# kept PATTERN PARAMETER...: is refused, and the device keeps its contents.
kept ()
{
  local before

  sync_device
  before="$(sha256sum < "$back")"
  refused "$1" "file=$device" "${how[@]}" "${@:2}"
  sync_device
  [ "$before" = "$(sha256sum < "$back")" ]
}

test_device ()
{
  # Nothing but zeros, with and without holes.
  zeros
  create create=16M 2> "$tmp/err"
  cat "$tmp/err"
  # It fits: nothing need be said.
  if grep 'the image can' "$tmp/err"; then fail "it fits"; fi
  reads_zeros 16
  # Now there is an image.
  kept 'there is data at offset 0; overwrite=true would destroy it' create=16M
  reads_zeros 16

  # One byte, anywhere.
  for offset in 1 5000000 $((size - 1)); do
    zeros
    printf x | dd of="$back" bs=1 seek="$offset" conv=notrunc status=none
    kept "there is data at offset $offset;" create=16M
  done

  # Old data does not show, whatever is preallocated.
  sample 2 off metadata falloc full
  for preallocation in "${sample[@]}"; do
    for cluster in 512 2M; do
      old_data
      create create=12M preallocation=$preallocation cluster-size=$cluster overwrite=true
      reads_zeros 12
    done
    zeros
    create create=12M preallocation=$preallocation
    reads_zeros 12
  done
  # Nor when it is written later, in part.
  old_data
  create create=12M overwrite=true
  start_nbdkit "file=$device" "${how[@]}"
  nbdsh_run -c 'h.pwrite(b"x" * 1000, 70000); h.zero(5000, 200000); h.flush()
assert h.pread(4 << 20, 0) == bytes(70000) + b"x" * 1000 + bytes((4 << 20) - 71000)'
  stop_nbdkit
  sync_device
  check_clean "$back"

  # What the image does not use stays.
  old_data
  create create=1M overwrite=true
  sync_device
  [ "$(tail -c 8 "$back")" = "old data" ]

  # Encrypted, and over a backing file.
  old_data
  create create=4M encrypt=luks passphrase=x iter-time=1 preallocation=metadata overwrite=true
  start_nbdkit "file=$device" "${how[@]}" passphrase=x
  nbdsh_run -c 'assert h.pread(4 << 20, 0) == bytes(4 << 20)'
  stop_nbdkit
  random_file "$tmp/below" 1048576
  old_data
  create create=auto backing-file="$tmp/below" backing-format=raw overwrite=true
  sync_device
  cp "$back" "$tmp/image"
  same_as_raw "$tmp/image" "$tmp/below"
  # With a data file, which is new.
  old_data
  create create=4M data-file="$tmp/data" data-file-raw=true overwrite=true
  [ "$(file_size "$tmp/data")" = $((4 << 20)) ]
  kept 'data.*exists already' create=4M data-file="$tmp/data" overwrite=true
  rm "$tmp/data"

  # Too small.
  old_data
  kept "has $size bytes, but the metadata of the new image needs [0-9]*$" create=100G \
    cluster-size=512 overwrite=true
  kept "has $size bytes, but the preallocated image needs 25493504$" create=24M \
    preallocation=metadata overwrite=true
  # Too small for all of the disk: that is told.
  create create=64M overwrite=true 2> "$tmp/err"
  grep "the image can need up to $("$python" -c 'import json, sys
print(json.load(sys.stdin)["fully-allocated"])' < <(qemu-img measure --output=json \
    --size 64M -O qcow2)) bytes; the device has $size$" "$tmp/err"

  # What fails later leaves no image, and zeros where there were zeros.
  zeros
  refused 'nosuchdir' "file=$device" "${how[@]}" create=16M stats="$tmp/nosuchdir/s"
  is_zeros
  refused 'multiple of 512' "file=$device" "${how[@]}" create=16M snapshot-create=s \
    bitmap-add=b resize=5000001
  is_zeros
  refused 'version 2 with snapshots' "file=$device" "${how[@]}" create=1M compat=0.10 \
    snapshot-create=s resize=2M
  is_zeros
  old_data
  refused 'version 2 with snapshots' "file=$device" "${how[@]}" create=1M compat=0.10 \
    snapshot-create=s resize=2M overwrite=true
  refused 'not a qcow2 image' "file=$device" "${how[@]}"
}

# below PARAMETER...: the device itself cannot be below the new image, at any depth.
below ()
{
  zeros
  qemu-img create -q -f qcow2 "$tmp/golden" 8M
  dd if="$tmp/golden" of="$back" conv=notrunc status=none
  sync_device
  qemu-img create -q -u -f qcow2 -b "$device" -F qcow2 "$tmp/middle" 8M
  qemu-img create -q -u -f qcow2 -b "$tmp/middle" -F qcow2 "$tmp/upper" 8M
  for format in qcow2 raw; do
    kept 'is in the backing chain' create=8M overwrite=true backing-file="$device" \
      backing-format="$format" lock=false "$@"
  done
  for file in middle upper; do
    kept 'is in the backing chain' create=auto overwrite=true \
      backing-file="$tmp/$file" backing-format=qcow2 lock=false "$@"
  done
}

# --- an export ---

# The server reads the file anew for each connection, and admits one client.
back="$tmp/far" device="nbd+unix:///?socket=$sockdir/far.sock" how=(lock=false)
truncate -s "$size" "$back"
sync_device () { :; }
"$NBDKIT" -f -U "$sockdir/far.sock" -P "$tmp/far.pid" --filter=limit file "$back" limit=1 &
helper_pids+=($!)
await -p $! test -s "$tmp/far.pid"
refused 'lock=false permits' "file=$device" create=16M
refused 'create= cannot be used with data-file=URI' file="$tmp/new" create=1M \
  data-file="$device"
test_device

# One that admits several clients.
device="nbd+unix:///?socket=$sockdir/all.sock" how=()
"$NBDKIT" -f -U "$sockdir/all.sock" -P "$tmp/all.pid" file "$back" &
helper_pids+=($!)
await -p $! test -s "$tmp/all.pid"
below allow-uri="$device"

# A file that exists stays, whatever is asked for.
random_file "$tmp/file" 100000
refused_untouched 'exists already' "$tmp/file" create=1M overwrite=true
start_and_end "$tmp/new" create=1M overwrite=true
check_clean "$tmp/new"
refused 'overwrite=.* requires create=' "$tmp/new" overwrite=true

# --- a block device ---

command -v losetup || skip "losetup is missing"
back="$tmp/disk" how=()
truncate -s "$size" "$back"
device="$(losetup --find --show "$back")" || skip "no loop device can be had"
# It goes when the last process that has it open ends, however that is.
exec 9<>"$device"
losetup --detach "$device"
# What one side writes the other side sees.
sync_device ()
{
  sync "$back"
  "$python" -c 'import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
os.fsync(fd)
fcntl.ioctl(fd, 0x1261)  # BLKFLSBUF' "$device"
}
test_device
below
# Through a link, too.
ln -s "$device" "$tmp/link"
device="$tmp/link"
zeros
create create=16M
reads_zeros 16

# In use: by a server, by the host.
zeros
create create=16M
start_nbdkit "file=$device"
hold_connection
refused 'lock' "file=$device" create=16M overwrite=true
drop_connections
stop_nbdkit
zeros
mkfs.ext2 -q "$device" || skip "no mkfs.ext2"
mkdir "$tmp/mnt"
mount "$device" "$tmp/mnt" || skip "cannot mount"
status=0
refused 'busy' "file=$device" create=16M overwrite=true || status=$?
umount "$tmp/mnt"
[ "$status" = 0 ]
