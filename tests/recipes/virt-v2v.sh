#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit can be started as virt-v2v starts it, for the disks that it reads and writes.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_filter cow
. "$srcdir/lib/recipes.sh"

before ()
{
  make_files
  sha256sum disk.qcow2 > before.sums
}

after ()
{
  check_clean new.qcow2
  same new.qcow2 then.raw
  sha256sum --check before.sums
}

recipe virt-v2v
