#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# libnbd is loaded for images on NBD servers, and not for those in files.  If it cannot be
# loaded, images in files are served, and others are refused in one line.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_namespace

make_image "$tmp/disk.qcow2" 16M
PLUGIN=file start_nbdkit_as far "$tmp/disk.qcow2"
far="$uri"

start_nbdkit "$tmp/disk.qcow2"
if grep libnbd "/proc/$nbdkit_pid/maps"; then fail "libnbd is loaded for a file"; fi
stop_nbdkit
start_nbdkit -r -- "$far"
library="$(awk '/libnbd/ { print $6; exit }' "/proc/$nbdkit_pid/maps")"
[ "$library" ] || fail "libnbd is not loaded for an NBD server"
stop_nbdkit

mount --bind /dev/null "$library"
start_and_end "$tmp/disk.qcow2"
refused "^nbdkit: error: nbd.unix:.*far.sock: cannot connect without libnbd: .*libnbd" -r -- "$far"
