#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What rebase= refuses, in one line, before anything has changed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

cd "$tmp"
qemu-img create -q -f raw a.raw 4M
cp a.raw b.raw
qemu-io -f raw -c 'write -P 1 0 64k' a.raw > io.log
qemu-img create -q -f qcow2 -b a.raw -F raw top.qcow2
to=(rebase=b.raw backing-format=raw)
both=(top.qcow2 "${to[@]}")

# --- parameters ---

refused_untouched 'rebase=NAME requires backing-format=qcow2' top.qcow2 rebase=b.raw
refused_untouched 'rebase-unsafe=true requires rebase=NAME' top.qcow2 rebase-unsafe=true
refused_untouched 'rebase= cannot be used with backing=deny' top.qcow2 rebase= backing=deny
refused_untouched 'rebase= cannot be used with flatten=true' "${both[@]}" flatten=true
refused_untouched 'rebase= cannot be used with snapshot-create=' "${both[@]}" \
  snapshot-create=s
refused_untouched 'untrusted=true cannot be used with rebase=' "${both[@]}" untrusted=true
refused 'rebase= cannot be used with create=: use backing-file=' new.qcow2 create=1M \
  "${to[@]}"
[ ! -e new.qcow2 ]
refused 'dir= cannot be used with rebase=' dir=. "${to[@]}"
refused_untouched 'rebase=.*the name has more than 1023 bytes' top.qcow2 \
  rebase="$(printf '%01024d' 0)" backing-format=raw
refused_untouched 'rebase=.*control character 0x0a' top.qcow2 rebase=$'a\nb' \
  backing-format=raw

# --- names ---

refused_untouched 'missing' top.qcow2 rebase=missing backing-format=raw
refused_untouched 'only files and NBD are supported' top.qcow2 \
  rebase=http://localhost/disk backing-format=raw
refused_untouched 'b[.]raw.*not.*qcow2' top.qcow2 rebase=b.raw backing-format=qcow2
for unsafe in true false; do
  refused_untouched 'users and keys must not be in an image' top.qcow2 \
    rebase='nbds://me@localhost/disk' backing-format=raw rebase-unsafe=$unsafe
done

# Chains that lead back.
qemu-img create -q -f qcow2 -b top.qcow2 -F qcow2 over.qcow2
for name in over.qcow2 top.qcow2 ./top.qcow2 "$tmp/top.qcow2"; do
  refused_untouched 'loop' top.qcow2 rebase="$name" backing-format=qcow2
done
refused_untouched 'cannot be its own backing file' top.qcow2 rebase=./top.qcow2 \
  backing-format=qcow2 rebase-unsafe=true

# A header without space.
qemu-img create -q -f qcow2 -o cluster_size=512 -b a.raw -F raw small.qcow2
long=./$(printf '%0400d' 0)
mkdir -p deep
for unsafe in true false; do
  refused_untouched 'has no space for' small.qcow2 rebase="${long//0/./}a.raw" \
    backing-format=raw rebase-unsafe=$unsafe
done

# --- images ---

cp top.qcow2 snap.qcow2
qemu-img snapshot -c s snap.qcow2
refused_untouched 'cannot be rebased: it has internal snapshots' snap.qcow2 "${to[@]}"
cp top.qcow2 corrupt.qcow2
header_patch corrupt.qcow2 72 Q '|2'
refused_untouched 'cannot be rebased: the image is marked corrupt' corrupt.qcow2 \
  "${to[@]}"
refused_untouched 'cannot be changed: the image is marked corrupt' corrupt.qcow2 \
  "${to[@]}" rebase-unsafe=true
start_nbdkit -r -- top.qcow2
for unsafe in true false; do
  refused_untouched 'top[.]qcow2.*lock' "${both[@]}" rebase-unsafe=$unsafe
done
stop_nbdkit
