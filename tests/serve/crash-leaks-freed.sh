#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Clusters that a killed server has left allocated are free again after the next start
# that may write, without being asked; but not if another program has written to the image
# meanwhile, nor with -r, nor if the refcounts are wrong in another way.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

img="$tmp/a.qcow2"

# is_in_use IMAGE: is our autoclear bit set?
is_in_use ()
{
  [ $(( 0x$(od -An -tx1 -j88 -N1 "$1" | tr -d ' ') & 0x80 )) -ne 0 ]
}

leaks ()
{
  local n

  n=$({ qemu-img check --output=json -f qcow2 "$1" || :; } |
      sed -n 's/.*"leaks": \([0-9]*\).*/\1/p')
  echo "${n:-0}"
}

# crash IMAGE: flushed data, data that is not, and a server that is killed.
crash ()
{
  start_nbdkit file="$1"
  "$python" - "$uri" "$nbdkit_pid" <<'PY'
import nbd, os, signal, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"f" * 65536, 1 << 20)
h.flush()
for i in range(40):
    h.pwrite(b"u" * 65536, (2 << 20) + i * 65536)
os.kill(int(sys.argv[2]), signal.SIGKILL)
PY
  wait "$nbdkit_pid" || :
  unset "server_pid[main]"
}

holds_flushed ()
{
  qemu-io -r -f qcow2 -c 'read -P 0x66 1M 64k' "$1" > "$tmp/out"
  if grep 'verification failed' "$tmp/out"; then fail "what was flushed is lost"; fi
}

for options in cluster_size=64k cluster_size=512 cluster_size=2M,refcount_bits=1 \
               cluster_size=4k,refcount_bits=64 extended_l2=on; do
  rm -f "$img"
  make_image "$img" 64M "$options"
  crash "$img"
  is_in_use "$img"
  [ "$(leaks "$img")" -gt 0 ]
  holds_flushed "$img"

  # Readers change nothing.
  before=$(fingerprint "$img")
  start_nbdkit -r -- file="$img"
  nbdsh_run -c 'assert h.pread(65536, 1 << 20) == b"f" * 65536'
  stop_nbdkit
  [ "$before" = "$(fingerprint "$img")" ]
  cp --sparse=always "$img" "$tmp/crashed.qcow2"

  # A client that may write, though it writes nothing.
  start_nbdkit file="$img"
  nbdsh_run -c 'assert h.pread(65536, 1 << 20) == b"f" * 65536'
  stop_nbdkit
  if is_in_use "$img"; then fail "still marked"; fi
  check_clean "$img"
  holds_flushed "$img"

  # Crashes do not add up.
  crash "$img"
  size=$(file_size "$img")
  crash "$img"
  crash "$img"
  crash "$img"
  [ "$(file_size "$img")" -le $((size + (1 << 20) + (2 << 20))) ]
  start_and_end file="$img" resize=+1M
  check_clean "$img"
  holds_flushed "$img"
  rm -f "$img"
done

# QEMU clears the bit when it writes: then nothing is freed.
make_image "$img" 64M
crash "$img"
qemu-io -f qcow2 -c 'write -P 9 60M 64k' "$img"
if is_in_use "$img"; then fail "QEMU has kept the bit"; fi
before=$(leaks "$img")
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"n" * 65536, 50 << 20)'
stop_nbdkit
[ "$(leaks "$img")" -eq "$before" ]

# A refcount that is too low was not left by a crash: the image stays as it is.  (That of
# the cluster with the active L1 table, in the first refcount block.)
rm "$img"
make_image "$img" 64M
crash "$img"
is_in_use "$img"
header_patch "$img" rb+6 H 0
before=$(fingerprint "$img")
start_nbdkit file="$img"
nbdinfo --is readonly "$uri"
nbdsh_run -c 'assert h.pread(65536, 1 << 20) == b"f" * 65536'
stop_nbdkit
grep 'not closed properly and cannot be changed: .* has 1 references but its refcount is 0' \
  "$tmp/main.log"
[ "$before" = "$(fingerprint "$img")" ]

# Version 2 has no place for the mark.
rm "$img"
make_image "$img" 64M compat=0.10
crash "$img"
before=$(leaks "$img")
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"n", 0)'
stop_nbdkit
[ "$(leaks "$img")" -le "$before" ]
check_leaks_only "$img"

# A snapshot was about to be deleted by a program that crashed: its clusters, and what it
# shared with the disk, have counts that are too high.
for options in compat=v3 cluster_size=512 extended_l2=on; do
  img="$tmp/snapshot.qcow2"
  rm -f "$img"
  make_image "$img" 1M "$options,lazy_refcounts=on"
  qemu-io -f qcow2 -c 'write -P 1 0 64k' -c 'write -P 2 300k 100k' "$img"
  qemu-img snapshot -c s "$img"
  qemu-io -f qcow2 -c 'write -P 3 0 10k' "$img"
  header_patch "$img" 60 I 0 64 Q 0
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/shown.raw"
  start_nbdkit "$img"
  nbdsh_run -c 'h.pwrite(b"\3" * 512, 0); h.flush()'
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/shown.raw"
done
