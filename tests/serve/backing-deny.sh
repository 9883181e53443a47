#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# backing=deny refuses an image that names a backing file; backing=PATH replaces the
# name.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/base.raw" 65536
make_image "$tmp/overlay.qcow2" 64k "backing_file=base.raw,backing_fmt=raw"
make_image "$tmp/plain.qcow2" 64k

refused 'base\.raw|backing' file="$tmp/overlay.qcow2" backing=deny
start_nbdkit file="$tmp/plain.qcow2" backing=deny
nbdsh_run -c 'assert h.pread(65536, 0) == bytes(65536)'
stop_nbdkit

start_nbdkit file="$tmp/overlay.qcow2" backing=follow
model verify "$uri" "$tmp/base.raw"
stop_nbdkit

# Also when the one that the image names is gone.
mv "$tmp/base.raw" "$tmp/moved.raw"
refused 'base\.raw' file="$tmp/overlay.qcow2"
refused 'base\.raw|backing' file="$tmp/overlay.qcow2" backing=deny
start_nbdkit file="$tmp/overlay.qcow2" backing="$tmp/moved.raw" backing-format=raw
model verify "$uri" "$tmp/moved.raw"
stop_nbdkit
cd "$tmp"
start_nbdkit file=overlay.qcow2 backing=./moved.raw backing-format=raw
model verify "$uri" "$tmp/moved.raw"
stop_nbdkit
