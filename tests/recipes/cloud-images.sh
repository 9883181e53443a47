#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A cloud image is downloaded, verified and resized, and each machine gets an overlay.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires curl --version
requires busybox httpd --help
. "$srcdir/lib/recipes.sh"
in_network_namespace

before ()
{
  mkdir web
  cd web
  make_files
  sha512sum disk.qcow2 then.raw > SHA512SUMS
  serve_web
  cd ..
}

after ()
{
  grep 'disk.qcow2: OK' out
  grep '^11811160064$' out
  for vm in one two; do
    [ "$(virtual_size vms/$vm.qcow2)" = 11811160064 ]
    same vms/$vm.qcow2 web/then.raw
    [ "$(allocated_kib vms/$vm.qcow2)" -lt 1024 ]
  done
  cmp disk.qcow2 web/disk.qcow2
}

recipe "Cloud images"
