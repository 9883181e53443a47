#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A client of one's own copies what a bitmap has recorded, and no more; applied to the
# last full backup that gives the disk.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/recipes.sh"

before ()
{
  make_files
  rm disk.raw
}

before_command ()
{
  if [[ "$1" = *"save.py \"\$uri\""* ]]; then
    start_nbdkit disk.qcow2
    nbdsh_run -c 'h.pwrite(b"hello", 1 << 20); h.zero(1 << 20, 2 << 20); h.flush()' \
      -c 'h.pwrite(b"end", (1 << 30) - 3)'
    stop_nbdkit
  fi
}

after ()
{
  check_clean disk.qcow2
  same disk.qcow2 full.raw
  if same disk.qcow2 then.raw; then fail "nothing has changed"; fi
  # Clusters of 64K: those of "hello" and "end", and the zeros.
  [ "$(file_size monday.changes)" -gt $(((1 << 20) + 2 * 65536)) ]
  [ "$(file_size monday.changes)" -lt $(((1 << 20) + 3 * 65536)) ]
  [ "$(bitmaps_of disk.qcow2 | wc -l)" = 2 ]
}

recipe "An incremental backup with a client of your own"
