#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# libguestfs, July 2012 (QEMU before 1.1): what was written before SIGTERM is lost.
#
# The server was told to end while it was used, with writes in flight, and crashed.  What
# it had acknowledged did not get into the image: "this data loss, if it happens, is
# silent".
#
# https://listman.redhat.com/archives/libguestfs/2012-July/msg00020.html
# Broken: end-with-clients-writes-nothing

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
# Block I is full of letter I, for this many blocks.
cat > "$tmp/write.py" <<'PY'
import os, sys
import nbd
uri, acknowledged = sys.argv[1:]
BLOCK, BLOCKS, AT_ONCE = 16384, 4096, 8
log = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
h = nbd.NBD()
h.connect_uri(uri)


def write(i):
    def done(err, i=i):
        if err.value == 0:
            os.write(log, b"%d\n" % i)
        return 1
    buf = nbd.Buffer.from_bytearray(bytearray([1 + i % 255]) * BLOCK)
    h.aio_pwrite(buf, i * BLOCK, completion=done)


try:
    for i in range(BLOCKS):
        while h.aio_in_flight() >= AT_ONCE:
            h.poll(-1)
        write(i)
    while True:                 # it is not closed
        h.poll(-1)
except nbd.Error:
    pass
PY
# written: 100 blocks were acknowledged.
written ()
{
  [ "$(wc -l < "$tmp/acknowledged")" -ge 100 ]
}
for options in compat=v3 cluster_size=4k,lazy_refcounts=on; do
  rm -f "$img"
  : > "$tmp/acknowledged"
  make_image "$img" 64M "$options"
  start_nbdkit file="$img"
  "$python" "$tmp/write.py" "$uri" "$tmp/acknowledged" &
  writer=$!
  helper_pids+=("$writer")
  await -p "$writer" written
  stop_nbdkit
  wait "$writer"
  helper_pids=()
  check_clean "$img"
  if is_dirty "$img"; then fail "the image is dirty after the end of its server"; fi
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/out.raw"
  "$python" - "$tmp/out.raw" "$tmp/acknowledged" <<'PY'
import sys
with open(sys.argv[2]) as f:
    acknowledged = [int(line) for line in f]
assert len(acknowledged) >= 100, acknowledged
with open(sys.argv[1], "rb") as f:
    for i in acknowledged:
        f.seek(i * 16384)
        if f.read(16384) != bytes([1 + i % 255]) * 16384:
            sys.exit("block %d was acknowledged, and is lost" % i)
print("%d blocks were acknowledged" % len(acknowledged))
PY
done
