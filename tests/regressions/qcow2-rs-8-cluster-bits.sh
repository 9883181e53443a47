#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# qcow2-rs, pull request 8: the size of a cluster is shifted out of its type.
#
# cluster_bits of 64 and more ended the server, and with it the block device of a guest.
#
# https://github.com/ublk-org/qcow2-rs/pull/8
# Broken: cluster-bits-unchecked

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 1M
for bits in 0 8 22 31 32 63 64 0xffffffff; do
  header_patch "$img" 20 I "$bits"
  refused_always 'cluster_bits is' "$img"
done
