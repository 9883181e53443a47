#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# TLS with pre-shared keys: nbdkit does it; it works with this plugin.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version
requires psktool --version
requires sh -c "$NBDKIT --dump-config | grep -q ^tls=yes"

psktool -u alice -p "$tmp/keys.psk"
psktool -u mallory -p "$tmp/other.psk"
img="$tmp/a.qcow2"
make_image "$img" 8M
random_file "$tmp/data.raw" $((8 << 20))
start_nbdkit --tls=require --tls-psk="$tmp/keys.psk" -- file="$img"
tls="nbds+unix://alice@localhost/?socket=$sock&tls-psk-file=$tmp/keys.psk"

nbdinfo "$tls"
nbdcopy "$tmp/data.raw" "$tls"
nbdcopy "$tls" "$tmp/out.raw"
cmp "$tmp/data.raw" "$tmp/out.raw"
if nbdinfo "$uri"; then fail "served without TLS"; fi
if nbdinfo "nbds+unix://mallory@localhost/?socket=$sock&tls-psk-file=$tmp/other.psk"; then
  fail "served to somebody else"
fi
stop_nbdkit
check_clean "$img"
same_as_raw "$img" "$tmp/data.raw"
