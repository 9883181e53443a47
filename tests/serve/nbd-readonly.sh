#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image in an NBD export is read-only, with a line that says why, without lock=false
# (NBD has no locks), on a server that cannot write or cannot flush, and with blocks that
# are too large to write a sector at a time.  Changes before serving, and repairs, are
# refused with the same reason; so is a commit into such a backing file.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_filter blocksize-policy
requires "$NBDKIT" eval --dump-plugin

random_file "$tmp/disk.raw" 1000000
truncate -s 1M "$tmp/disk.raw"
qemu-img convert -f raw -O qcow2 "$tmp/disk.raw" "$tmp/far"
fingerprint "$tmp/far" > "$tmp/before"

# read_only PATTERN [PARAMETER...]: the last server's export is served, but not written.
read_only ()
{
  local far_uri="$uri" pattern="$1"

  shift
  start_nbdkit "$far_uri" "$@"
  nbdsh_run -c 'assert h.is_read_only(); print(h.pread(512, 0)[:8])'
  nbdcopy "$uri" "$tmp/copy.raw"
  cmp "$tmp/copy.raw" "$tmp/disk.raw"
  stop_nbdkit
  grep -E "served read-only: .*$pattern" "$tmp/main.log"
  stop_nbdkit far
  fingerprint "$tmp/far" | diff - "$tmp/before"
}

PLUGIN=file start_nbdkit_as far "$tmp/far"
read_only 'NBD has no locks.*lock=false'
PLUGIN=file start_nbdkit_as far -r -- "$tmp/far"
read_only 'does not allow' lock=false
PLUGIN=file start_nbdkit_as far --filter=blocksize-policy -- "$tmp/far" \
  blocksize-minimum=8192 blocksize-preferred=8192 blocksize-error-policy=error
read_only 'smallest block' lock=false
# shellcheck disable=SC2016
PLUGIN=eval start_nbdkit_as far get_size="stat -c %s $tmp/far" \
  pread="dd if=$tmp/far iflag=skip_bytes,count_bytes skip=\$4 count=\$3 bs=64k status=none" \
  pwrite='exit 1' can_write='exit 0'
read_only 'no flush' lock=false

PLUGIN=file start_nbdkit_as far "$tmp/far"
for change in resize=2M snapshot-create=x bitmap-add=x; do
  refused 'NBD has no locks.*lock=false' "$uri" $change
done
qemu-img create -q -f qcow2 -b "$uri" -F qcow2 "$tmp/top.qcow2"
fails_with "far.sock: the backing file of $tmp/top.qcow2 cannot be written: NBD has no locks" \
  "$abs_top_builddir/img/nbdkit-qcow2-img" commit --allow-uri "$uri" "$tmp/top.qcow2"
stop_nbdkit far

# A leak: a new cluster at the end, with a refcount of 1 (in block 2).
truncate -s 8M "$tmp/far"
printf '\000\001' | dd of="$tmp/far" bs=1 seek=$((2 * 65536 + 127 * 2)) conv=notrunc status=none
{ qemu-img check -f qcow2 "$tmp/far" || :; } | grep -i leaked
PLUGIN=file start_nbdkit_as far "$tmp/far"
fails_with 'cannot be repaired: NBD has no locks' \
  "$NBDKIT" -U - --run true "$PLUGIN" "$uri" check=repair
stop_nbdkit far

# -r asks for nothing else, so nothing is said.
PLUGIN=file start_nbdkit_as far "$tmp/far"
start_nbdkit -r -- "$uri"
nbdinfo --size "$uri"
stop_nbdkit
if grep -q read-only "$tmp/main.log"; then fail "-r was explained"; fi
