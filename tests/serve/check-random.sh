#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Random damage to metadata: check=quick does not serve images that qemu-img check finds
# corrupt; and for QEMU, an image that check=repair repaired has no faults and the same
# contents.  See check_random.py.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

seconds=2
if long_suite; then seconds=6; fi
cd "$tmp"
/usr/bin/env python3 "$srcdir/lib/check_random.py" "$NBDKIT" "$PLUGIN" \
  "${SECONDS_TO_RUN:-$seconds}"
