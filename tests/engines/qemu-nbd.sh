#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image in a file, behind qemu-nbd, which admits one client: what was flushed is there
# after our server, or qemu-nbd, was killed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/engines.sh"
requires_tools
requires nbdcopy --version
requires qemu-nbd --version

truncate -s 32M "$tmp/far"
parts=(far)
far_uri="nbd+unix:///?socket=$sockdir/qemu.sock"

start_engine ()
{
  rm -f "$sockdir/qemu.sock"
  start_daemon far qemu-nbd -t -f raw -k "$sockdir/qemu.sock" "$tmp/far"
  await_daemon far nbdinfo --size "$far_uri"
}

engine_keeps_what_was_flushed
