#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A backup for which there is no space says so in one line, and leaves all generations as they
# are, and nothing in the image; when there is space, the next one is incremental.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_namespace
. "$srcdir/lib/img.sh"

make_image a.qcow2 16M
mkdir small
mount -t tmpfs -o size=5M none small
start_nbdkit control="$sockdir/qmp" a.qcow2
backup ()
{
  "$IMG" --control "$sockdir/qmp" backup disk small/backups
}
nbdsh_run -c 'h.pwrite(b"1" * 1000000, 0); h.flush()'
backup
before="$(sha256sum small/backups/*)"
nbdsh_run -c 'h.pwrite(b"2" * 8000000, 0); h.flush()'
for _ in 1 2; do
  if backup 2> err; then fail "there is space"; fi
  grep '^nbdkit-qcow2-img: .*small/backups/000002.qcow2.part: .*No space left on device' err
  [ "$(grep -c '^nbdkit-qcow2-img' err)" = 1 ]
  [ "$before" = "$(sha256sum small/backups/*)" ]
  "$IMG" --control "$sockdir/qmp" info disk | tee info
  [ "$(grep -c 'backup-[0-9a-f]\{16\}-' info)" = 1 ]
done
mount -o remount,size=50M small
backup | grep 'incremental backup 2'
stop_nbdkit
check_clean a.qcow2
qemu-img compare -f qcow2 -F qcow2 a.qcow2 small/backups/000002.qcow2
