#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU's tools work as clients.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

img="$tmp/a.qcow2"
random_file "$tmp/in.raw" $((6 << 20))
truncate -s 20M "$tmp/in.raw"
make_image "$img" 20M
start_nbdkit file="$img"
requires qemu-img info -f raw "$uri"
qemu-img convert -n -f raw -O raw "$tmp/in.raw" "$uri"
qemu-img convert -f raw -O raw "$uri" "$tmp/out.raw"
cmp "$tmp/in.raw" "$tmp/out.raw"
qemu-img compare -f raw -F raw "$tmp/in.raw" "$uri"
# The holes are seen: what is copied to qcow2 is as small.
qemu-img convert -f raw -O qcow2 "$uri" "$tmp/copy.qcow2"
[ "$(allocated_kib "$tmp/copy.qcow2")" -lt 7000 ]

cat > "$tmp/commands" <<'END'
write -P 1 0 64k
write -P 2 100 1000
write -z 1M 1M
write -z -u 3M 300k
discard 4M 1M
aio_write -P 3 5M 128k
aio_write -P 4 6M 128k
aio_flush
flush
read -P 2 100 1000
read -P 1 1100 64436
read -P 0 1M 1M
read -P 0 3M 300k
read -P 0 4M 1M
read -P 3 5M 128k
read -P 4 6M 128k
write -f -P 5 7M 512
read -P 5 7M 512
END
qemu-io -f raw -d unmap "$uri" < "$tmp/commands" > "$tmp/out"
cat "$tmp/out"
if grep -Ei 'verification failed|error' "$tmp/out"; then fail "wrong data"; fi
stop_nbdkit
check_clean "$img"

# Also with many requests at a time.
start_nbdkit file="$img"
qemu-img bench -f raw -w -c 2000 -d 32 -s 4096 "$uri"
qemu-img bench -f raw -c 2000 -d 32 -s 4096 "$uri"
stop_nbdkit
check_clean "$img"
