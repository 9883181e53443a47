#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image in a file, behind nbdkit's file plugin: what was flushed is there after our
# server, or that nbdkit, was killed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/engines.sh"
requires_tools
requires nbdcopy --version

truncate -s 32M "$tmp/far"
parts=(far)

start_engine ()
{
  # shellcheck disable=SC2209
  PLUGIN=file start_nbdkit_as far "$tmp/far"
  far_uri="$uri"
}

engine_keeps_what_was_flushed
