#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A disk in use is backed up twice, and restored as it was at the first time.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/recipes.sh"

before_command ()
{
  if [[ "$1" = *" backup --keep "* ]]; then write_hello "$sockdir/vm.sock"; fi
}

after ()
{
  same restored.qcow2 then.raw
  has_hello disk.qcow2
  same backups/000002.qcow2 then.raw
}

recipe "Backups each day"
