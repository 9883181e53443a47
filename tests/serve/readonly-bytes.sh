#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With -r neither a byte of the image nor its modification time changes; an image that is
# not writable is served read-only.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
random_file "$tmp/data.raw" $((2 << 20))
try_all_reads ()
{
  nbdinfo --is readonly "$uri"
  if nbdinfo --can zero "$uri"; then return 1; fi
  nbdinfo --map "$uri" > /dev/null
  model verify "$uri" "$tmp/data.raw"
  nbdsh_run -c 'h.cache(1 << 20, 0)' -c - <<'PY'
import errno
h.set_strict_mode(h.get_strict_mode() & ~nbd.STRICT_COMMANDS)
for f in (lambda: h.pwrite(b"x", 0), lambda: h.zero(65536, 0),
          lambda: h.trim(65536, 0)):
    try:
        f()
        raise SystemExit("a read-only disk was written")
    except nbd.Error as e:
        assert e.errnum in (errno.EPERM, errno.EROFS), e
PY
}

qemu-img convert -f raw -O qcow2 "$tmp/data.raw" "$img"
qemu-img snapshot -c s "$img"
qemu-img bitmap --add "$img" bitmap
touch -d '2001-02-03 04:05:06.789' "$img"
before=$(fingerprint "$img")
start_nbdkit -r -- file="$img"
try_all_reads
stop_nbdkit
[ "$before" = "$(fingerprint "$img")" ]

# An unknown autoclear bit and the dirty bit stay too.
header_patch "$img" 88 Q '|0x40' 72 Q '|1'
touch -d '2001-02-03 04:05:06.789' "$img"
before=$(fingerprint "$img")
start_nbdkit -r -- file="$img"
try_all_reads
kill9_nbdkit main
[ "$before" = "$(fingerprint "$img")" ]

# Random reads.
start_nbdkit -r -- file="$img" l2-cache=16K
model random "$uri" "$tmp/data.raw" --ops 1000
stop_nbdkit
[ "$before" = "$(fingerprint "$img")" ]

# A file that its user may not write (root always may).
qemu-img convert -f raw -O qcow2 "$tmp/data.raw" "$img"
if [ "$(id -u)" -ne 0 ]; then
  chmod 0444 "$img"
  before=$(fingerprint "$img")
  start_nbdkit file="$img"
  try_all_reads
  stop_nbdkit
  [ "$before" = "$(fingerprint "$img")" ]
fi
