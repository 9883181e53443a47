#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# TLS with certificates: nbdkit does it; it works with this plugin.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version
requires certtool --version
requires sh -c "$NBDKIT --dump-config | grep -q ^tls=yes"

# A certificate authority, a server and a client.
pki="$tmp/pki"
mkdir "$pki"
quietly () { "$@" > "$tmp/certtool.log" 2>&1 || { cat "$tmp/certtool.log"; return 1; }; }
printf 'cn=test\nca\ncert_signing_key\nexpiration_days=2\n' > "$tmp/ca.info"
printf 'cn=localhost\ndns_name=localhost\ntls_www_server\nsigning_key\nencryption_key\nexpiration_days=2\n' \
  > "$tmp/server.info"
printf 'cn=client\ntls_www_client\nsigning_key\nencryption_key\nexpiration_days=2\n' \
  > "$tmp/client.info"
for who in ca server client; do
  quietly certtool --generate-privkey --key-type=ecdsa --curve=secp256r1 \
    --outfile "$pki/$who-key.pem"
done
quietly certtool --generate-self-signed --load-privkey "$pki/ca-key.pem" \
  --template "$tmp/ca.info" --outfile "$pki/ca-cert.pem"
for who in server client; do
  quietly certtool --generate-certificate --load-ca-certificate "$pki/ca-cert.pem" \
    --load-ca-privkey "$pki/ca-key.pem" --load-privkey "$pki/$who-key.pem" \
    --template "$tmp/$who.info" --outfile "$pki/$who-cert.pem"
done

img="$tmp/a.qcow2"
make_image "$img" 8M
random_file "$tmp/data.raw" $((8 << 20))
start_nbdkit --tls=require --tls-certificates="$pki" --tls-verify-peer -- file="$img"
tls="nbds+unix://localhost/?socket=$sock&tls-certificates=$pki"

nbdinfo "$tls"
# A probe.
[ "$(nbdinfo --size "${tls/localhost\//localhost/.health}")" = 0 ]
nbdcopy "$tmp/data.raw" "$tls"
nbdcopy "$tls" "$tmp/out.raw"
cmp "$tmp/data.raw" "$tmp/out.raw"
# Without TLS there is nothing to be had.
if nbdinfo "$uri"; then fail "served without TLS"; fi
stop_nbdkit
check_clean "$img"
same_as_raw "$img" "$tmp/data.raw"
