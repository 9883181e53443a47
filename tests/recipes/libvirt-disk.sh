#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# libvirt accepts the XML of a disk of ours, and the socket in it is one that serves.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires virt-xml-validate --version
requires xmllint --version
. "$srcdir/lib/recipes.sh"

after ()
{
  grep "socket=\"$sockdir/vm.sock\"" vm.xml
  # It judges.
  sed 's/protocol="nbd"/protocol="nbdx"/' vm.xml > bad.xml
  if virt-xml-validate bad.xml domain; then fail "everything is accepted"; fi
}

recipe "A disk of libvirt"
