#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image on a file system that is mounted read-only is served read-only, with -r and
# without.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_namespace

mkdir "$tmp/media"
random_file "$tmp/data.raw" $((1 << 20))
qemu-img convert -f raw -O qcow2 "$tmp/data.raw" "$tmp/media/a.qcow2"
mount --bind "$tmp/media" "$tmp/media"
mount -o remount,ro,bind "$tmp/media" || skip "can't mount read-only"
if touch "$tmp/media/a.qcow2"; then fail "still writable"; fi
before=$(fingerprint "$tmp/media/a.qcow2")

for option in -r --filter=nofilter; do
  start_nbdkit "$option" -- file="$tmp/media/a.qcow2"
  nbdinfo --is readonly "$uri"
  model verify "$uri" "$tmp/data.raw"
  stop_nbdkit
done
[ "$before" = "$(fingerprint "$tmp/media/a.qcow2")" ]
umount "$tmp/media"
