#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A flush on one connection covers writes on all others; nbdcopy relies on that.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version

img="$tmp/a.qcow2"
make_image "$img" 32M
random_file "$tmp/data.raw" $((20 << 20))
truncate -s 32M "$tmp/data.raw"

start_nbdkit file="$img"
nbdinfo --can multi-conn "$uri"
nbdcopy --connections=4 --requests=16 "$tmp/data.raw" "$uri"
model verify "$uri" "$tmp/data.raw"
nbdcopy --connections=4 --requests=16 "$uri" "$tmp/out.raw"
cmp "$tmp/data.raw" "$tmp/out.raw"

# Written on three connections, flushed on the fourth, then the server is gone.
nbdsh_run -c - <<PY
others = [nbd.NBD() for i in range(3)]
for i, o in enumerate(others):
    o.connect_uri("$uri")
    o.pwrite(bytes([65 + i]) * 65536, (24 << 20) + (i << 18))
for i, o in enumerate(others):
    # What one writes, all see at once.
    assert h.pread(65536, (24 << 20) + (i << 18)) == bytes([65 + i]) * 65536
h.flush()
import os
os.kill($nbdkit_pid, 9)
PY
wait "$nbdkit_pid" || :
unset "server_pid[main]"
check_leaks_only "$img"
qemu-io -r -f qcow2 -c 'read -P 65 24M 64k' -c "read -P 66 $((24576 + 256))k 64k" \
  -c "read -P 67 $((24576 + 512))k 64k" "$img" > "$tmp/out"
if grep -q 'verification failed' "$tmp/out"; then fail "flush did not cover all"; fi
