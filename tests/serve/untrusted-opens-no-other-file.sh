#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# untrusted=true: the image is read-only, and no other file is opened.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
random_file "$tmp/data.raw" $((1 << 20))
qemu-img convert -f raw -O qcow2 "$tmp/data.raw" "$img"
before=$(fingerprint "$img")
start_nbdkit file="$img" untrusted=true
nbdinfo --is readonly "$uri"
model verify "$uri" "$tmp/data.raw"
nbdsh_run -c - <<'PY'
h.set_strict_mode(h.get_strict_mode() & ~nbd.STRICT_COMMANDS)
try:
    h.pwrite(b"x", 0)
    raise SystemExit("an untrusted image was written")
except nbd.Error:
    pass
PY
stop_nbdkit
[ "$before" = "$(fingerprint "$img")" ]

make_image "$tmp/over.qcow2" 1M "backing_file=data.raw,backing_fmt=raw"
refused 'data\.raw|backing' file="$tmp/over.qcow2" untrusted=true
refused 'data\.raw|backing' file="$tmp/over.qcow2" untrusted=true backing=follow
start_nbdkit file="$tmp/over.qcow2" untrusted=false
model verify "$uri" "$tmp/data.raw"
stop_nbdkit
