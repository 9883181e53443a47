#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A backing file behind NBD: named by the user (backing=URI, create= with
# backing-file=URI), or by the image in any of QEMU's ways, but then only if allow-uri=
# allows it.  Any other URI in an image is refused in one line, and no connection is made.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

random_file "$tmp/disk.raw" 3000000
truncate -s 4M "$tmp/disk.raw"
qemu-img convert -f raw -O qcow2 "$tmp/disk.raw" "$tmp/base.qcow2"
PLUGIN=file start_nbdkit_as far -r -- "$tmp/base.qcow2"
far="$uri" socket="$sock"
PLUGIN=file start_nbdkit_as raw -r -- "$tmp/disk.raw"
raw="$uri"
img="$tmp/top.qcow2"

# overlay NAME [FORMAT]: an image whose header names NAME.
overlay ()
{
  qemu-img create -q -f qcow2 -u -b "$1" -F "${2-qcow2}" "$img" 4M
}

# shows [PARAMETER...]: the disk of $img is that of the base.
shows ()
{
  start_nbdkit "$img" "$@"
  nbdcopy "$uri" "$tmp/copy.raw"
  cmp "$tmp/copy.raw" "$tmp/disk.raw"
  nbdsh_run -c 'h.pwrite(b"x", 5); h.flush(); assert h.pread(3, 4)[1:2] == b"x"'
  stop_nbdkit
  check_clean "$img"
}

json="{\"driver\":\"qcow2\",\"file\":{\"driver\":\"nbd\",\"export\":\"\",\
\"server\":{\"type\":\"unix\",\"path\":\"$socket\"}}}"
for name in "$far" "nbd:unix:$socket" "nbd:unix:$socket:exportname=e" "json:$json" \
            "json:{\"file.driver\":\"nbd\",\"file.server.type\":\"unix\",\
\"file.server.path\":\"$socket\"}"; do
  overlay "$name"
  refused 'opens no connections.*allow-uri=' "$img"
  refused 'opens no connections.*allow-uri=' "$img" \
    allow-uri="nbd+unix:///other?socket=$socket"
  refused 'must not be opened' "$img" untrusted=true
  refused 'untrusted=true cannot be used with allow-uri=' "$img" untrusted=true \
    allow-uri="$far"
  shows allow-uri="$far"
done
overlay "$raw" raw
shows allow-uri="$raw"
overlay "json:{\"driver\":\"raw\",\"file.driver\":\"file\",\"file.filename\":\"$tmp/disk.raw\"}" raw
shows

# QEMU agrees.
overlay "$far"
shows allow-uri="$far" flatten=true
qemu-img info "$img"
overlay "json:$json"
qemu-img compare -f qcow2 -F raw "$img" "$tmp/disk.raw"

# In a directory, too, an image opens no connection by itself.
mkdir "$tmp/images"
qemu-img create -q -f qcow2 -u -b "$far" -F qcow2 "$tmp/images/top" 4M
start_nbdkit -r -- dir="$tmp/images"
if nbdinfo "$(export_uri top)"; then fail "an image of a directory opens a connection"; fi
grep 'top: .*opens no connections.*allow-uri=' "$tmp/main.log"
stop_nbdkit
start_nbdkit -r -- dir="$tmp/images" allow-uri="$far"
nbdcopy "$(export_uri top)" "$tmp/copy.raw"
cmp "$tmp/copy.raw" "$tmp/disk.raw"
stop_nbdkit

# The user's own choice needs no permission.
overlay nothing
start_nbdkit "$img" backing="$far"
nbdcopy "$uri" "$tmp/copy.raw"
cmp "$tmp/copy.raw" "$tmp/disk.raw"
stop_nbdkit
rm "$img"
start_nbdkit "$img" create=auto backing-file="$far" backing-format=qcow2
[ "$(nbdinfo --size "$uri")" = $((4 << 20)) ]
stop_nbdkit
qemu-img info --output=json "$img" | grep -F "\"backing-filename\": \"$far\""
qemu-img compare -f qcow2 -F raw "$img" "$tmp/disk.raw"
refused 'allow-uri=' "$img"
shows allow-uri="$far"

# What is no file, or means nothing.
for name in https://example.com/x rbd:pool/image 'json:{"driver":"qcow2","file.driver":"rbd"}' \
            'json:{' nbds://me@localhost/x 'nbds://localhost/?tls-psk-file=/etc/shadow' \
            nbd:localhost nbd:///; do
  overlay "$name"
  refused 'top.qcow2: backing file name' "$img" allow-uri=nbd://localhost
done
overlay 'nbds://hush@localhost/x?tls-psk-file=/hush'
refused 'backing file name \(an NBD URI\): users and keys' "$img"
if grep hush "$tmp/refused.err"; then fail "a secret of an image is shown"; fi
for name in https://me:hush@example.com/x rbd:pool/image:key=hush \
            'json:{"driver":"https","url":"https://me:hush@example.com/x"}' \
            'json:{"driver":"ssh","password":"hush"}'; do
  overlay "$name"
  refused 'backing file name "[a-z]*:.*\.\.\.' "$img"
  if grep hush "$tmp/refused.err"; then fail "a secret in $name is shown"; fi
done
qemu-img create -q -f qcow2 -u -b base.qcow2 -F qcow2 "$img" 4M
PLUGIN=file start_nbdkit_as relative -r -- "$img"
refused 'a relative name below a URI means nothing' "$uri"

# Parameters.  Secrets are not shown.
refused 'allow-uri=.*must be an NBD URI' "$img" allow-uri=/tmp
refused 'file=.*malformed' nbd:///
refused 'file=.*malformed' 'nbd+unix:///x'
refused '^nbdkit: error: nbds://127.0.0.1:1/x: cannot connect' \
  'nbds://hush@127.0.0.1:1/x?tls-psk-file=/tmp/hush'
for key in file backing data-file; do
  if [ $key = file ]; then image=(); else image=("$img"); fi
  for name in https://me:hush@example.com/x http://localhost/hush ssh://hush@h/x rbd:hush; do
    refused "^nbdkit: error: $key=[a-z]*:\.\.\.: neither a file nor an NBD URI: run an NBD" \
      "${image[@]}" $key="$name"
    if grep hush "$tmp/refused.err"; then fail "a secret in $name is shown"; fi
  done
  refused "^nbdkit: error: $key=json:\.\.\.: .* give the path or the NBD URI alone" \
    "${image[@]}" $key='json:{"driver":"raw","file.filename":"hush"}'
  # Forms of URIs that are none.
  for name in nbd:localhost:10809 nbd:/hush nbd+unix:/hush unix:/hush; do
    refused "^nbdkit: error: $key=[a-z+]*:\.\.\.: an NBD URI is nbd://" \
      "${image[@]}" $key=$name
  done
  refused "^nbdkit: error: $key=https:\.\.\.: neither a file" "${image[@]}" $key=https:/hush
  refused "^nbdkit: error: $key=file:\.\.\.: give the path alone" "${image[@]}" $key=file:x
done
# Files may have such names.
mkdir "$tmp/c:"
for name in json:x nbd:x a:b c:/d; do
  cp "$tmp/disk.raw" "$tmp/$name"
  (cd "$tmp" && overlay x raw && \
    "$NBDKIT" -r -U - "$PLUGIN" "$img" backing="$name" --run 'nbdcopy "$uri" -' |
      cmp - disk.raw)
done
overlay nbd:::1:10809
refused 'an IPv6 address is in brackets' "$img" allow-uri='nbd://[::1]'
refused 'reconnect=' "$img" reconnect=x
refused 'connect-timeout=' "$img" connect-timeout=0
refused 'cannot create: the NBD server does not allow' "$far" create=1M
