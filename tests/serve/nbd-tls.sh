#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image behind TLS: the user and the key are in the URI, or in the nearest allow-uri=
# above a name in an image; no message shows them, not even when the server refuses them.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires psktool --version

psktool -u alice -p "$tmp/keys"
make_image "$tmp/far" 8M
qemu-io -f qcow2 -c 'write -P 7 0 64k' "$tmp/far"
PLUGIN=file start_nbdkit_as far --tls=require --tls-psk="$tmp/keys" -- "$tmp/far"

# uri_of USER EXPORT
uri_of ()
{
  echo "nbds+unix://$1@/$2?socket=$sockdir/far.sock&tls-psk-file=$tmp/keys"
}

shows ()
{
  start_nbdkit -r -- "$@"
  nbdsh_run -c 'assert h.pread(65536, 0) == b"\7" * 65536'
  stop_nbdkit
}

shows "$(uri_of alice '')"
refused 'cannot connect: the reason may contain secrets' "$(uri_of mallory '')"
if grep -E 'mallory|keys' "$tmp/refused.err"; then fail "a secret is shown"; fi

# The nearest one is used.
qemu-img create -q -f qcow2 -u -b "nbds+unix:///disk/a?socket=$sockdir/far.sock" -F qcow2 \
  "$tmp/top.qcow2" 8M
shows "$tmp/top.qcow2" allow-uri="$(uri_of mallory '')" allow-uri="$(uri_of alice disk)"
refused 'cannot connect' "$tmp/top.qcow2" allow-uri="$(uri_of alice '')" \
  allow-uri="$(uri_of mallory disk)"

# Names for the header cannot have secrets; allow-uri has them.
name="nbds+unix:///disk/b?socket=$sockdir/far.sock"
refused 'users and keys must not be in an image' "$tmp/new.qcow2" create=auto \
  backing-format=qcow2 backing-file="$(uri_of alice disk/b)"
shows "$tmp/new.qcow2" create=auto backing-format=qcow2 backing-file="$name" \
  allow-uri="$(uri_of alice '')"
"$abs_top_builddir/img/nbdkit-qcow2-img" rebase -b "$name" -F qcow2 \
  --allow-uri "$(uri_of alice '')" "$tmp/top.qcow2"
shows "$tmp/top.qcow2" allow-uri="$(uri_of alice '')"
qemu-img info -U "$tmp/top.qcow2" | grep -F "backing file: $name"
if grep -E 'alice|keys' "$tmp/top.qcow2" "$tmp/new.qcow2"; then fail "a secret is stored"; fi
