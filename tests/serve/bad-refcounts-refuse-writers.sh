#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Invalid refcount structures: no client may write, the image is marked corrupt as by
# QEMU, and reads work.  With -r nothing changes.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/good.qcow2" 64M
random_file "$tmp/data.raw" 65536
qemu-io -f qcow2 -c "write -s $tmp/data.raw 0 64k" "$tmp/good.qcow2" >/dev/null
img="$tmp/a.qcow2"

# bad MESSAGE PATCH...
bad ()
{
  local message="$1" before
  shift
  cp "$tmp/good.qcow2" "$img"
  header_patch "$img" "$@"
  before=$(fingerprint "$img")

  start_nbdkit -r -- file="$img"
  nbdcopy "$uri" "$tmp/out.raw"
  stop_nbdkit
  cmp -n 65536 "$tmp/out.raw" "$tmp/data.raw"
  [ "$before" = "$(fingerprint "$img")" ]

  start_nbdkit file="$img"
  nbdsh_run -c - <<'PY'
if not h.is_read_only():
    try:
        h.pwrite(b"x" * 65536, 1 << 20)
        h.flush()
        raise SystemExit("written without refcounts that make sense")
    except nbd.Error:
        pass
PY
  nbdcopy "$uri" "$tmp/out.raw"
  cmp -n 65536 "$tmp/out.raw" "$tmp/data.raw"
  stop_nbdkit
  grep -E "a\.qcow2: .*($message)" "$tmp/main.log"
  is_marked_corrupt "$img"
  # Only the mark was written.
  cmp -n 65536 -i 196608 "$img" "$tmp/good.qcow2"

  # And the next one says why it is served read-only, once for all clients.
  start_nbdkit file="$img"
  nbdinfo --is readonly "$uri"
  nbdinfo --is readonly "$uri"
  stop_nbdkit
  [ "$(grep -c 'served read-only: .*corrupt' "$tmp/main.log")" -eq 1 ]
}

bad "reference count is 0" rb H 0
bad "refcount" rt Q +512
bad "refcount" rt Q 0x7fffffff0000
bad "refcount" rt Q l1
bad "refcount" rt Q rt
