#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The plugin works under nbdkit's filters.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
random_file "$tmp/data.raw" $((4 << 20))

# with FILTER... -- PARAMETER...: random requests through it.
with ()
{
  local -a filters=()
  while [ "$1" != -- ]; do
    filters+=("--filter=$1")
    if ! "$NBDKIT" --filter="$1" null --dump-plugin > /dev/null; then
      echo "no filter $1"
      return 0
    fi
    shift
  done
  shift
  rm -f "$img"
  qemu-img convert -f raw -O qcow2 "$tmp/data.raw" "$img"
  cp "$tmp/data.raw" "$tmp/model.raw"
  start_nbdkit "${filters[@]}" -- file="$img" "$@"
  # (nbdkit's cache filter holds writes back, and passes trims and the map through.)
  model random "$uri" "$tmp/model.raw" --seconds 0.7 --trim any \
    --weights "$([[ "${filters[*]}" != *=cache ]] || echo extents=0,trim=0)"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
}

with stats -- statsfile="$tmp/stats"
with log -- logfile="$tmp/log"
grep -q 'Write' "$tmp/log"
with cache --
with fua -- fuamode=force
with blocksize -- minblock=4096
with noextents --
with nozero -- zeromode=plugin
with cacheextents --
with noparallel --

# cow: the image stays as it is.
requires_filter cow
before=$(fingerprint "$img")
start_nbdkit --filter=cow -- file="$img"
model random "$uri" "$tmp/model.raw" --seconds 0.7 --trim any
stop_nbdkit
[ "$before" = "$(fingerprint "$img")" ]

# partition: the second of two.
requires_filter partition
truncate -s 8M "$tmp/disk.raw"
"$python" - "$tmp/disk.raw" <<'PY'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    f.seek(446)
    for start, count in ((2048, 2048), (4096, 8192)):
        f.write(struct.pack("<B3sB3sII", 0, b"\0\2\0", 0x83, b"\0\2\0", start, count))
    f.seek(510)
    f.write(b"\x55\xaa")
    f.seek(4096 * 512)
    f.write(b"second partition")
PY
qemu-img convert -f raw -O qcow2 "$tmp/disk.raw" "$img"
start_nbdkit --filter=partition -- file="$img" partition=2
[ "$(nbdinfo --size "$uri")" = $((8192 * 512)) ]
nbdsh_run -c 'assert h.pread(16, 0) == b"second partition"; h.pwrite(b"SECOND", 0); h.zero(65536, 65536)'
stop_nbdkit
check_clean "$img"
printf SECOND | dd of="$tmp/disk.raw" bs=512 seek=4096 conv=notrunc status=none
same_as_raw "$img" "$tmp/disk.raw"

# A part of the disk, and more than the disk.
requires_filter offset
requires_filter truncate
start_nbdkit --filter=truncate --filter=offset -- file="$img" offset=2M range=1M truncate=2M
[ "$(nbdinfo --size "$uri")" = $((2 << 20)) ]
nbdsh_run -c 'assert h.pread(6, 0) == b"SECOND"; assert h.pread(9, 2000000) == bytes(9)'
stop_nbdkit
check_clean "$img"
