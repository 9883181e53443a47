#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Every command works on an image on an NBD server that admits one client at a time, as
# qemu-nbd does if it is not told otherwise.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires qemu-nbd --version

cd "$tmp/ours"
make_image far 64M
qemu-io -f qcow2 -c 'write -P 1 0 1M' far
qemu-img convert -f qcow2 -O raw far model
truncate -s 8M far
qemu-nbd -t -k "$sockdir/far" -f raw far &
helper_pids+=($!)
await -p "$!" listens "$sockdir/far"
uri="nbd+unix:///?socket=$sockdir/far"

"$IMG" info "$uri"
"$IMG" check "$uri"
"$IMG" check -r all "$uri"
"$IMG" map "$uri"
"$IMG" measure -O qcow2 "$uri"
for how in -c -a -d; do "$IMG" snapshot "$how" now "$uri"; done
for how in --add --disable --enable --clear --remove; do "$IMG" bitmap "$how" "$uri" b; done
"$IMG" resize "$uri" +1M
"$IMG" resize --shrink "$uri" 64M
"$IMG" amend -o lazy_refcounts=on "$uri"
"$IMG" rebase -u -b '' "$uri"
"$IMG" bench -c 10 "$uri"
"$IMG" dd if="$uri" of=copy.raw
"$IMG" backup "$uri" backups
"$IMG" backup "$uri" backups
"$IMG" convert -O qcow2 "$uri" copy.qcow2
"$IMG" compare "$uri" copy.qcow2
for copy in model copy.raw; do cmp model "$copy"; done
"$IMG" create -f qcow2 "$uri" 64M
"$IMG" convert -n -O qcow2 copy.qcow2 "$uri"
"$IMG" check "$uri"
qemu-img compare -f qcow2 -F raw "$uri" model
