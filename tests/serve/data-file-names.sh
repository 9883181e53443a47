#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Which file is the external data file?  data-file=, relative names, and names that are
# refused with one line: a missing file, one that is already in use, a FIFO.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

mkdir "$tmp/dir"
cd "$tmp"
img=dir/a.qcow2 data=dir/a.raw

holds ()
{
  nbdsh_run -c "assert h.pread(4, 65536) == b'$1', h.pread(4, 65536)"
}

# with_data FILE TEXT: a data file with a text at 64K.
with_data ()
{
  truncate -s 1M "$1"
  printf %s "$2" | dd of="$1" bs=64k seek=1 conv=notrunc status=none
}

make_image "$img" 1M "data_file=$tmp/$data"
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"here", 65536); h.flush()'
stop_nbdkit
[ "$(dd if="$data" bs=64k skip=1 count=1 status=none | head -c 4)" = here ]

# data-file=
refused 'must not be opened' file="$img" data-file=deny
refused 'must not be opened' file="$img" untrusted=true
refused 'must not be opened' file="$img" untrusted=true data-file=follow
with_data other.raw "else"
start_nbdkit file="$img" data-file=other.raw
holds else
nbdsh_run -c 'h.pwrite(b"ELSE", 65536); h.flush()'
stop_nbdkit
start_nbdkit -r -- file="$img" data-file=follow
holds here
stop_nbdkit

# Below another image it is that image's own, whatever the parameter says.
make_image top.qcow2 1M "backing_file=$img,backing_fmt=qcow2"
start_nbdkit file=top.qcow2
holds here
stop_nbdkit
refused 'must not be opened' file=top.qcow2 data-file=deny
refused 'no external data file' file=top.qcow2 data-file=other.raw
make_image both.qcow2 1M "data_file=both.raw,backing_file=$img,backing_fmt=qcow2"
with_data both.raw ''
with_data new.raw ''
start_nbdkit file=both.qcow2 data-file=new.raw
holds here
nbdsh_run -c 'h.pwrite(b"new!", 65536); h.flush()'
holds 'new!'
stop_nbdkit

# The file is gone, or is no file, or the image does not know its name.
mv "$data" moved.raw
refused 'a\.raw.*No such file' file="$img"
mkfifo "$data"
refused 'a\.raw.*FIFO' file="$img"
rm "$data"
start_nbdkit -r -- file="$img" data-file=moved.raw
holds here
stop_nbdkit
mv moved.raw "$data"
make_image unnamed.qcow2 1M "data_file=$tmp/unnamed.raw"
with_data unnamed.raw name
at=$(grep -obUaF 'DATA' unnamed.qcow2 | head -n 1 | cut -d: -f1)
header_patch unnamed.qcow2 "$at" I 0x12345678
refused 'does not say where.*data-file=PATH' file=unnamed.qcow2
start_nbdkit file=unnamed.qcow2 data-file=unnamed.raw
nbdsh_run -c 'h.pwrite(b"x", 0); h.flush()'
stop_nbdkit

# In use already: the image itself, a file below it, a data file below it, a file whose
# data it is.
refused 'already used' file="$img" data-file="$img"
ln -s a.qcow2 dir/link
refused 'already used' file="$img" data-file=dir/link
refused 'contains a loop: .*already used as .*both.raw' file=both.qcow2 \
  backing="$tmp/both.raw" \
  backing-format=raw
refused 'already used as .*both.qcow2' file=both.qcow2 backing="$img" \
  data-file=both.qcow2
refused 'contains a loop: .*already used as .*a.raw' file=both.qcow2 data-file="$data" \
  backing="$tmp/$data" backing-format=raw
refused 'a\.raw: .*already used as .*a.raw' file=both.qcow2 data-file="$data"

# A relative name: next to the image, or where QEMU would look.
make_image dir/rel.qcow2 1M "data_file=dir/rel.raw"
qemu-io -f qcow2 -c 'write -P 0x41 65536 4' dir/rel.qcow2
start_nbdkit file="$tmp/dir/rel.qcow2"
holds AAAA
stop_nbdkit
(
  cd dir
  make_image near.qcow2 1M "data_file=near.raw"
  qemu-io -f qcow2 -c 'write -P 0x42 65536 4' near.qcow2
)
start_nbdkit file=dir/near.qcow2
holds BBBB
stop_nbdkit
with_data near.raw "wrong"
refused 'near\.raw.*could be .* or .*data-file=' file=dir/near.qcow2
start_nbdkit file=dir/near.qcow2 data-file=dir/near.raw
holds BBBB
stop_nbdkit
rm near.raw
ln dir/near.raw near.raw
start_nbdkit file=dir/near.qcow2
holds BBBB
stop_nbdkit

# What can't be written makes the disk read-only.
if [ "$(id -u)" != 0 ]; then
  chmod a-w "$data"
  start_nbdkit file="$img"
  nbdinfo --is readonly "$uri"
  holds here
  stop_nbdkit
  chmod u+w "$data"
fi
check_clean "$img"

# Entries that lead elsewhere, and compressed ones, are corruption.
make_image bad.qcow2 1M "data_file=$tmp/bad.raw,preallocation=metadata"
l2=$(( $("$python" -c '
import struct
f = open("bad.qcow2", "rb")
f.seek(40); l1 = struct.unpack(">Q", f.read(8))[0]
f.seek(l1); print(struct.unpack(">Q", f.read(8))[0] & 0xfffffffffffe00)') ))
header_patch bad.qcow2 $((l2 + 8)) Q 0x8000000000020000 \
  $((l2 + 24)) Q 0x4000000000030000
start_nbdkit -r -- file=bad.qcow2
nbdsh_run -c - <<'PY'
assert h.pread(65536, 0) == bytes(65536)
for offset in 65536, 3 * 65536:
    try:
        h.pread(512, offset)
        raise SystemExit("was read")
    except nbd.Error as e:
        assert e.errno == "EIO"
PY
stop_nbdkit
for offset in 65536 $((3 * 65536)); do
  cp bad.qcow2 worse.qcow2
  start_nbdkit file=worse.qcow2
  nbdsh_run -c - <<PY
try:
    h.pwrite(b"x", $offset)
    raise SystemExit("was written")
except nbd.Error as e:
    assert e.errno == "EIO"
PY
  stop_nbdkit
  is_marked_corrupt worse.qcow2
done
