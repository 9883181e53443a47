#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Data that a flush or a FUA request has acknowledged survives the server.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 16M
start_nbdkit file="$img"
nbdinfo --can flush "$uri"
nbdinfo --can fua "$uri"
stop_nbdkit

# after SCRIPT COMMAND...: does SCRIPT, kills the server, then qemu-io's COMMANDs must
# find what they look for.
after ()
{
  local script="$1" c
  local -a commands=()
  shift
  for c; do commands+=(-c "$c"); done
  start_nbdkit file="$img"
  nbdsh_run -c "$script"
  kill9_nbdkit main
  check_leaks_only "$img"
  qemu-io -r -f qcow2 "${commands[@]}" "$img" > "$tmp/out"
  cat "$tmp/out"
  if grep -q 'verification failed' "$tmp/out"; then fail "lost after: $script"; fi
}

fua=nbd.CMD_FLAG_FUA
# Allocating, in a part of a cluster, in place, over many clusters.
after "h.pwrite(b'a' * 65536, 0, $fua)" 'read -P 0x61 0 64k'
after "h.pwrite(b'b' * 100, 1000100, $fua)" 'read -P 0x62 1000100 100' 'read -P 0 983040 17060'
after "h.pwrite(b'c' * 1000, 100, $fua)" 'read -P 0x63 100 1000' 'read -P 0x61 1100 60k'
after "h.pwrite(b'd' * (1 << 20), 5 << 20, $fua)" 'read -P 0x64 5M 1M'
# FUA covers the request itself; flush what came before.
after "h.pwrite(b'e' * 65536, 8 << 20); h.pwrite(b'f' * 512, 9 << 20); h.flush()" \
  'read -P 0x65 8M 64k' 'read -P 0x66 9M 512'
after "h.zero(65536, 8 << 20, $fua)" 'read -P 0 8M 64k'
after "h.zero(512 << 10, 5 << 20, $fua | nbd.CMD_FLAG_NO_HOLE)" \
  'read -P 0 5M 512k' 'read -P 0x64 5632k 512k'
after "h.trim(512 << 10, 5632 << 10, $fua)" 'read -P 0 5M 1M'
# Many small ones.
after "
for i in range(200):
    h.pwrite(b'%04d' % i * 128, (i * 40961 & ~511) + (1 << 20), $fua)
for i in range(200):
    assert h.pread(512, (i * 40961 & ~511) + (1 << 20)) == b'%04d' % i * 128
" 'read -v 1M 16'
grep -q '30 30 30 30 30 30 30 30' "$tmp/out"

# It is really asked for: fdatasync, or a write that is durable by itself.
requires strace -f -o /dev/null true
NBDKIT_WRAPPER="strace -f -qq -o $tmp/trace -e trace=fdatasync,fsync,pwritev2" \
  start_nbdkit file="$img"
nbdsh_run -c "h.pwrite(b'g' * 512, 0)"
before=$(grep -cE 'fdatasync|fsync|RWF_DSYNC' "$tmp/trace" || :)
nbdsh_run -c "h.pwrite(b'h' * 512, 0, $fua)"
middle=$(grep -cE 'fdatasync|fsync|RWF_DSYNC' "$tmp/trace" || :)
nbdsh_run -c "h.flush()"
end=$(grep -cE 'fdatasync|fsync|RWF_DSYNC' "$tmp/trace" || :)
kill_traced
[ "$before" -lt "$middle" ]
[ "$middle" -lt "$end" ]
