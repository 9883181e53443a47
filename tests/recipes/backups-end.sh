#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU restores a backup; one in place is encrypted; and nothing is left of a repository that was
# removed but what belongs to another.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/recipes.sh"

after ()
{
  same_raw restored.raw then.raw
  qemu-img convert --object secret,id=s,data=secret --image-opts -O raw \
    driver=qcow2,encrypt.key-secret=s,file.filename=copy.qcow2 copy.raw
  same_raw copy.raw then.raw
  qemu-img info disk.qcow2 | grep 'name: backup-' > left
  cat left
  [ "$(wc -l < left)" = 1 ]
  grep "$(sed -n 's/.*"id": *"\([0-9a-f]*\)".*/\1/p' in-place/manifest.json)" left
}

recipe "Backups without this program, encrypted ones, and their end"
