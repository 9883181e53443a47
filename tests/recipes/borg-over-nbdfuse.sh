#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# borg backs our disk up over nbdfuse, stores what has not changed only once, and restores
# the same bytes.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires nbdfuse --version
[ -w /dev/fuse ] || skip "no /dev/fuse"
requires borg --version
requires_namespace
. "$srcdir/lib/recipes.sh"
export BORG_BASE_DIR="$tmp/borg"

before ()
{
  make_image disk.qcow2 64M
  random_file data $((8 << 20))
  qemu-io -f qcow2 -c 'write -s data 3M 8M' -c 'write -P 1 40M 64k' disk.qcow2
  qemu-img convert -f qcow2 -O raw disk.qcow2 then.raw
}

after ()
{
  cmp restored.raw then.raw
  [ "$(du -sm backups | cut -f1)" -lt 14 ]
}

recipe "A backup with borg"
