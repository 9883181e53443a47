#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image in the memory of another nbdkit, which admits one client: what was flushed is
# there after our server was killed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/engines.sh"
requires_tools
requires nbdcopy --version
requires_filter limit

# (With one thread: before 1.34, nbdkit may abort when a client is killed that waits for
# several answers.)
start_engine ()
{
  PLUGIN=memory start_nbdkit_as far -t 1 --filter=limit -- 32M limit=1
  far_uri="$uri"
}

engine_keeps_what_was_flushed
