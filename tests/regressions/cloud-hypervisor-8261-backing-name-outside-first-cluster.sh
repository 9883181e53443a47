#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Cloud Hypervisor, issue 8261: the backing file's name may be anywhere in the file.
#
# A name outside the first cluster can lie in guest data.  Then the guest chooses which
# file of the host becomes its disk at the next start, after the image was checked.
#
# https://github.com/cloud-hypervisor/cloud-hypervisor/issues/8261
# Broken: backing-name-anywhere

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
echo secret > "$tmp/secret.raw"
make_image "$img" 1M
printf '%s' "$tmp/secret.raw" > "$tmp/name"
truncate -s 4096 "$tmp/name"
qemu-io -f qcow2 -c "write -s $tmp/name 0 4k" "$img" > /dev/null
# The name, as the guest wrote it.
header_patch "$img" 8 Q data 16 I "${#tmp}"
header_patch "$img" 16 I +11
refused_always "backing file's name" "$img"
opens_no secret.raw "$img"
# It crosses the end of the cluster; it has no length; it is in the header itself.
header_patch "$img" 8 Q 65530 16 I 100
refused_always "backing file's name" "$img"
header_patch "$img" 8 Q 48 16 I 10
refused_always "backing file's name" "$img"
