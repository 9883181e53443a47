#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# qemu-img check -r leaks removes the dirty bit of an image with lazy refcounts and leaves
# refcounts that are too low.  The plugin does not allocate those clusters a second time: it
# serves the image read-only, until check=repair has corrected them.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

img="$tmp/a.qcow2"
make_image "$img" 10M lazy_refcounts=on
qemu-io -f qcow2 -c 'write -P 1 0 1M' -c flush -c 'sigraise 9' "$img" || :
is_dirty "$img"
qemu-img check -r leaks "$img" || :
if is_dirty "$img"; then echo "this QEMU keeps the dirty bit"; exit 77; fi

# intact PARAMETER...: a client writes elsewhere, if it can, and the old data is there.
intact ()
{
  # shellcheck disable=SC2016
  "$NBDKIT" -U - "$PLUGIN" "$img" "$@" \
    --run 'qemu-io -f raw "$uri" -c "write -P 2 5M 1M" || :' 2>&1 | tee "$tmp/out"
  # shellcheck disable=SC2016
  "$NBDKIT" -r -U - "$PLUGIN" "$img" \
    --run 'qemu-io -r -f raw "$uri" -c "read -P 1 0 1M"' | tee "$tmp/read"
  if grep 'verification failed' "$tmp/read"; then fail "flushed data is lost"; fi
}

intact
grep 'cannot be changed: .* refcount is 0' "$tmp/out"
intact check=repair
check_clean "$img"
