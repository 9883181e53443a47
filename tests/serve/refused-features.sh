#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Images with features that are not supported are refused at start-up, by name of the
# feature, top image and backing file alike.  (Encrypted images without a passphrase: see
# serve/encrypted-read-and-write.sh.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

try ()
{
  refused "$1" file="$tmp/$2.qcow2"
  refused "$1" -r -- file="$tmp/$2.qcow2"
  qemu-img create -q -u -f qcow2 -b "$2.qcow2" -F qcow2 "$tmp/over-$2.qcow2" 1M
  refused "$2\\.qcow2.*$1" file="$tmp/over-$2.qcow2"
}

# Internal snapshots of what an external data file holds can't be.
make_image "$tmp/external.qcow2" 1M "data_file=$tmp/external.raw"
truncate -s 512k "$tmp/external.qcow2"
header_patch "$tmp/external.qcow2" 60 I 1 64 Q 0x40000
try 'snapshots.*data file' external

# The image's own name of a feature that nobody knows.  (The first extension of an image
# without a backing file is the feature table, its first row begins at 120.)
make_image "$tmp/unknown.qcow2" 1M
[ "$(od -An -tx1 -j112 -N4 "$tmp/unknown.qcow2" | tr -d ' ')" = 6803f857 ]
header_patch "$tmp/unknown.qcow2" 72 Q 0x20 120 B 0 121 B 5 122 s 66726f626e6963617465 \
  132 B 0
try 'frobnicate' unknown
