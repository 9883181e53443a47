#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# resize= changes the size of the disk as qemu-img resize does: the remaining data does
# not change, and added space reads as zeros, whatever was there before or lies below.  A
# resize that is not possible is refused with one line, and changes nothing.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

img="$tmp/a.qcow2"

# is_resized RAW SIZE: the first bytes of RAW, then zeros.
is_resized ()
{
  truncate -s "$2" "$1"
  check_clean "$img"
  same_as_raw "$img" "$1"
}

sample 2 v2:16:64k v3:1:512 v3:16:4k v3:64:64k v3:8:2M sub:16:32k
for row in "${sample[@]}"; do
  IFS=: read -r compat bits cluster <<< "$row"
  rm -f "$img"
  how_made="compat=$compat,cluster_size=$cluster"
  if [ "$compat" = v3 ]; then how_made+=",refcount_bits=$bits"; fi
  if [ "$compat" = sub ]; then how_made="extended_l2=on,cluster_size=$cluster"; fi
  make_image "$img" 1000448 "$how_made"
  random_file "$tmp/raw" 1000448
  start_nbdkit "$img"
  nbdcopy "$tmp/raw" "$uri"
  stop_nbdkit main
  for size in 1001472 3M +512 +5M; do
    start_and_end "$img" resize="$size"
    is_resized "$tmp/raw" "$(virtual_size "$img")"
  done
  [ "$(virtual_size "$img")" = $(((8 << 20) + 512)) ]
  # QEMU does not zero what it cuts off within a cluster; we do, so it can't come back.
  for size in -7M 100k; do
    start_and_end "$img" resize="$size" shrink=true
    is_resized "$tmp/raw" "$(virtual_size "$img")"
  done
  [ "$(virtual_size "$img")" = 102400 ]
  [ "$(file_size "$img")" -lt $((16 << 20)) ]
  qemu-img resize -q "$img" 2M
  is_resized "$tmp/raw" 2M
  start_nbdkit "$img"
  nbdsh_run -c 'h.pwrite(b"x" * 1048576, 1048576); h.flush()'
  stop_nbdkit main
  contents="$tmp/raw"
  qemu-img convert -f qcow2 -O raw "$img" "$contents"
  qemu-img resize -q --shrink "$img" 1100800
  truncate -s 1100800 "$contents"
  start_and_end "$img" resize=2M
  is_resized "$contents" 2M
  for how in metadata falloc full; do
    start_and_end "$img" resize=+1M preallocation=$how
    is_resized "$contents" "$(virtual_size "$img")"
    qemu-img map -f qcow2 --output=json "$img" | tail -n 1 | grep -q '"offset"'
  done
  start_nbdkit "$img"
  nbdsh_run -c 'h.pwrite(b"y" * 700000, 3000000); h.flush()'
  stop_nbdkit main
  check_clean "$img"
done

# falloc and full take space on the host; off and metadata don't.
for row in off:1024 metadata:1024 falloc:99999 full:99999; do
  rm -f "$img"
  make_image "$img" 1M
  start_and_end "$img" resize=17M preallocation="${row%:*}"
  kib="$(allocated_kib "$img")"
  if [ "${row#*:}" = 99999 ]; then [ "$kib" -ge 16384 ]; else [ "$kib" -le 1024 ]; fi
done

# Small clusters take no longer than large ones, for as many bytes of metadata.
rm -f "$img"
make_image "$img" 1M cluster_size=512
"${soon[@]}" "$NBDKIT" -U - "$PLUGIN" "$img" resize=1G preallocation=metadata --run true
[ "$(file_size "$img")" -gt $((1 << 30)) ]

# Data that have no refcounts, at the end of the file, are not cut off with what the old
# refcounts took there: a repair can still save them.
rm -f "$img"
make_image "$img" 8M cluster_size=4k
qemu-io -f qcow2 -c 'write -P 1 0 1M' "$img"
"$python" - "$img" <<'EOF'
import os, sys
with open(sys.argv[1], "r+b") as f:
    n = os.fstat(f.fileno()).st_size // 4096
    f.seek(48)
    f.seek(int.from_bytes(f.read(8), "big"))
    # As many of the last clusters as nothing of the resize goes to.
    f.seek(int.from_bytes(f.read(8), "big") + 2 * (n - 100))
    f.write(bytes(200))
EOF
before="$(tail -c 200000 "$img" | sha256sum)"
size="$(file_size "$img")"
start_and_end "$img" resize=1G
[ "$(file_size "$img")" = "$size" ]
[ "$(tail -c 200000 "$img" | sha256sum)" = "$before" ]

# A backing file that is longer than the disk was: its data must not appear.
"$python" -c 'import sys; open(sys.argv[1], "wb").write(b"b" * (4 << 20))' "$tmp/base.raw"
for compat in v2 v3; do
  for how in off metadata; do
    rm -f "$img"
    qemu-img create -q -f qcow2 -o compat=$compat -b base.raw -F raw "$img" 1000448
    head -c 1000448 "$tmp/base.raw" > "$tmp/raw"
    start_and_end "$img" resize=6M preallocation=$how
    is_resized "$tmp/raw" 6M
  done
done

# Encrypted clusters that nobody wrote to are zeros all the same.
rm -f "$img"
secret=(--object "secret,id=s,data=open")
spec="driver=qcow2,file.filename=$img,encrypt.key-secret=s"
qemu-img create -q -f qcow2 "${secret[@]}" \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 "$img" 1000448
qemu-io "${secret[@]}" -c 'write -P 1 0 1000448' --image-opts "$spec"
for how in off metadata; do
  start_and_end "$img" passphrase=open resize=+1000448 preallocation=$how
done
qemu-io "${secret[@]}" -c 'read -P 1 0 1000448' -c 'read -P 0 1000448 2000896' \
  --image-opts "$spec" | tee "$tmp/out"
if grep failed "$tmp/out"; then fail "reads something else"; fi
qemu-img check "${secret[@]}" --image-opts "$spec"

# Snapshots keep their size and their data.
rm -f "$img"
make_image "$img" 4M
qemu-io -f qcow2 -c 'write -P 3 0 4M' "$img"
start_and_end "$img" snapshot-create=s resize=1M shrink=true
check_clean "$img"
start_and_end "$img" resize=2M snapshot-apply=s
check_clean "$img"
qemu-io -f qcow2 -c 'read -P 3 0 4M' "$img" | tee "$tmp/out"
if grep failed "$tmp/out"; then fail "reads something else"; fi

refused_untouched 'shrink=true' "$img" resize=1M
refused_untouched 'shrink=true' "$img" resize=-1M
refused_untouched 'greater than 0' "$img" resize=0 shrink=true
refused_untouched 'greater than 0' "$img" resize=-4M shrink=true
refused_untouched 'multiple of 512' "$img" resize=5000001
refused_untouched 'exceeds the maximum' "$img" resize=4E
refused_untouched 'requires a larger size' "$img" resize=1M shrink=true preallocation=full
refused_untouched 'not a size' "$img" resize=large
refused_untouched 'preallocation=some' "$img" preallocation=some
# The same size is no change.
start_and_end "$img" resize=4M resize=+0
rm -f "$img"
make_image "$img" 4M compat=v2
start_and_end "$img" snapshot-create=s
refused_untouched 'version 2 with snapshots' "$img" resize=8M

