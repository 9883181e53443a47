#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A cluster that is rewritten elsewhere (because a snapshot shares it) must not be lost
# when the server is killed before the pointer to the new cluster is durable: a read
# returns the old, flushed data or the new data, and the snapshot is intact.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 4M
qemu-io -f qcow2 -c 'write -P 0x4f 0 512k' "$img"
qemu-img snapshot -c s "$img"
qemu-img convert -f qcow2 -O raw "$img" "$tmp/old.raw"

judge ()
{
  qemu-img convert -f qcow2 -O raw -l snapshot.name=s "$1" "$tmp/snapshot.raw"
  cmp "$tmp/snapshot.raw" "$tmp/old.raw"
  qemu-img convert -f qcow2 -O raw "$1" "$tmp/judged.raw"
  "$python" - "$tmp/judged.raw" <<'PY'
import sys
got = open(sys.argv[1], "rb").read()
for i in range(0, len(got), 512):
    sector = got[i:i + 512]
    if len(set(sector)) != 1:
        sys.exit("torn sector at %d" % i)
    byte = chr(sector[0])
    if i < 256 << 10:
        allowed = "ON"      # overwritten
    elif i < 512 << 10:
        allowed = "O\0"     # zeroed
    elif i < 1 << 20:
        allowed = "\0"      # never touched
    else:
        allowed = "\0M"     # written for the first time
    if byte not in allowed:
        sys.exit("guest offset %d holds %r, expected one of %r" % (i, byte, allowed))
PY
}

killed_at_every_write "$img" judge '
for i in range(4):
    h.pwrite(b"N" * 65536, i << 16)
h.zero(256 << 10, 256 << 10)
for i in range(6):
    h.pwrite(b"M" * 65536, (1 << 20) + (i << 16))
h.flush()
'
# Parts of shared clusters: the rest is copied.
killed_at_every_write "$img" judge '
h.pwrite(b"N" * 512, 1024)
h.pwrite(b"N" * 4096, 65536 + 512, nbd.CMD_FLAG_FUA)
h.zero(512, 300 << 10)
h.flush()
'
