#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image with lazy refcounts has the dirty bit from the server's first change of
# metadata until the last writer has left.  If the server is killed meanwhile, both QEMU
# and the plugin can repair the image, and no flushed data is lost.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"

has_lazy_refcounts ()
{
  [ $(( 0x$(od -An -tx1 -j87 -N1 "$1" | tr -d ' ') & 1 )) -ne 0 ]
}

is_clean ()
{
  ! is_dirty "$1"
}

for cluster in 64k 512; do
  rm -f "$img" "$tmp/model.raw"
  make_image "$img" 8M "lazy_refcounts=on,cluster_size=$cluster"
  start_nbdkit file="$img"
  export img
  nbdsh_run -c - <<'PY'
import os
def dirty():
    with open(os.environ["img"], "rb") as f:
        f.seek(79)
        return f.read(1)[0] & 1
assert h.can_zero() and not dirty()
h.pread(65536, 0)
h.flush()
assert not dirty()              # nothing has changed
h.pwrite(b"1" * 300000, 100000)
h.flush()
assert dirty()
h.trim(65536, 131072)
h.flush()
assert dirty()
PY
  await is_clean "$img"         # the client has left
  # Again, in the same server; then a server that is stopped with a client.
  nbdsh_run -c 'h.pwrite(b"2" * 1000, 4000000, nbd.CMD_FLAG_FUA)' \
    -c 'assert open("'"$img"'", "rb").read(80)[79] & 1'
  hold_connection
  nbdsh_run -c 'h.pwrite(b"4" * 1000, 6000000, nbd.CMD_FLAG_FUA)'
  is_dirty "$img"
  kill -TERM "$nbdkit_pid"
  drop_connections
  wait "$nbdkit_pid"
  unset "server_pid[main]"
  if is_dirty "$img"; then fail "dirty after a clean end"; fi
  has_lazy_refcounts "$img"
  check_clean "$img"

  # Killed.
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/model.raw"
  start_nbdkit file="$img"
  model random "$uri" "$tmp/model.raw" --ops 300 --cluster "$cluster"
  # (Zeros first, so that the write has to allocate.)
  nbdsh_run -c 'h.zero(2 << 20, 0)' \
    -c 'h.pwrite(b"3" * 500000, 1000000, nbd.CMD_FLAG_FUA)' \
    -c "import os, signal; os.kill($nbdkit_pid, signal.SIGKILL)"
  wait "$nbdkit_pid" || :
  unset "server_pid[main]"
  is_dirty "$img"
  has_lazy_refcounts "$img"
  cp --sparse=always "$img" "$tmp/b.qcow2"
  qemu-img check -q -r all "$tmp/b.qcow2"
  check_clean "$tmp/b.qcow2"
  qemu-img convert -f qcow2 -O raw "$tmp/b.qcow2" "$tmp/expected.raw"
  "$python" - "$tmp/expected.raw" <<'PY'
import sys
d = open(sys.argv[1], "rb").read()
assert d[1000000:1500000] == b"3" * 500000
PY
  start_nbdkit file="$img"
  model verify "$uri" "$tmp/expected.raw"
  stop_nbdkit
  if is_dirty "$img"; then fail "dirty after the repair"; fi
  has_lazy_refcounts "$img"
  check_clean "$img"
  same_as_raw "$img" "$tmp/expected.raw"
done

# Other images never carry the bit.
rm -f "$img"
make_image "$img" 8M
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"2" * 1000, 4000000, nbd.CMD_FLAG_FUA)' \
  -c 'assert not open("'"$img"'", "rb").read(80)[79] & 1'
stop_nbdkit
check_clean "$img"
