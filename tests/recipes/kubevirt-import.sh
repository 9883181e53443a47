#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit is started as KubeVirt's importer starts it, and the image behind it is
# described, validated and converted.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_filter readahead
requires_filter retry
requires "$NBDKIT" curl --dump-plugin
requires busybox httpd --help
. "$srcdir/lib/recipes.sh"
in_network_namespace

before ()
{
  make_files
  rm disk.raw
  serve_web
}

after ()
{
  grep '"virtual-size": 1073741824' out
  same_raw disk.raw then.raw
}

recipe "Importing into KubeVirt"
