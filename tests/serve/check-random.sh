#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Random damage to metadata: what qemu-img check calls corrupt, check=quick does not
# serve; and what check=repair repairs is in order for QEMU, and reads as before.  See
# check_random.py.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

cd "$tmp"
/usr/bin/env python3 "$srcdir/lib/check_random.py" "$NBDKIT" "$PLUGIN" "${SECONDS_TO_RUN:-6}"
