#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A program that reads stats= enlarges the device in steps while a client writes all of
# the disk: no request fails, and none waits if the client writes less than the watermark
# between two looks of the program.  (lab/grow-device also measures this by time.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires losetup --version
truncate -s 1M "$tmp/probe"
dev="$(losetup --find --show "$tmp/probe")" || skip "no loop device can be had"
losetup --detach "$dev"

# grow OPTION...
grow ()
{
  TMPDIR="$sockdir" PLUGIN="$PLUGIN" "$python" "$srcdir/../lab/grow-device" --size=64 \
    --step=32 --poll=0.02 --json "$@" | tee "$tmp/rows"
}

# counter NAME
counter ()
{
  "$python" -c 'import json, sys
print(json.load(open(sys.argv[1]))[0][sys.argv[2]])' "$tmp/rows" "$1"
}

# In time, however slow this machine is.
grow --per-look=16 --watermarks=20 --delay=0
[ "$(counter grown)" = 2 ]
[ "$(counter low)" -ge 1 ]
[ "$(counter pauses)" = 0 ]

# Too late: the client waits.
grow --rates=0 --watermarks=1 --delay=1
[ "$(counter grown)" -ge 1 ]
[ "$(counter pauses)" -ge 1 ]
[ "$(counter pause_ms)" -ge 100 ]
