#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image of QEMU whose enabled bitmaps together need more memory than they may use is
# served read-only, with the reason, and its bitmaps are exports.  All changes are possible,
# before serving and by the program, as with qemu-img, and use little memory.  No change of
# ours makes such an image.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

IMG="$abs_top_builddir/img/nbdkit-qcow2-img"
cd "$tmp"
img=a.qcow2
reason='its enabled bitmaps together need more than 512M'

bitmaps ()
{
  qemu-img info -f qcow2 --output=json "$img" | "$python" -c '
import json, sys
data = json.load(sys.stdin)["format-specific"]["data"]
print(*(x["name"] + ":" + "+".join(x["flags"]) for x in data["bitmaps"]))'
}

# 256M each.
qemu-img create -q -f qcow2 $img 1T
for name in a b c; do qemu-img bitmap --add -g 512 $img $name; done
qemu-io -f qcow2 -c 'write -P 1 5M 64k' $img
cp $img before.qcow2

start_nbdkit $img
nbdinfo --is readonly "$uri"
nbdinfo --list "$uri" | grep 'export="bitmap:c"'
grep "served read-only: $reason" main.log
stop_nbdkit
cmp $img before.qcow2

# Each change alone, with less memory than one of the bitmaps needs.
truncate -s 1T base.raw
for change in snapshot-create=s resize=+1G resize=+512 "resize=9M shrink=true" \
              bitmap-remove=a bitmap-clear=c 'bitmap --disable a.qcow2 b' \
              'rebase -b base.raw -F raw a.qcow2' 'amend -o lazy_refcounts=on a.qcow2'; do
  cp before.qcow2 $img
  command=(start_and_end "$img")
  [[ "${change%% *}" = *=* ]] || command=("$IMG")
  # shellcheck disable=SC2086
  (ulimit -d $((256 << 10)); "${command[@]}" $change)
  check_clean $img
  qemu-io -f qcow2 -r -c 'read -P 1 5M 64k' $img > read
  if grep failed read; then fail "the data is gone"; fi
  case $change in
    bitmap-remove=*) [ "$(bitmaps)" = "b:auto c:auto" ] ;;
    *--disable*) [ "$(bitmaps)" = "a:auto b: c:auto" ] ;;
    *) [ "$(bitmaps)" = "a:auto b:auto c:auto" ] ;;
  esac
done

# Two of them are not too large.
cp before.qcow2 $img
"$IMG" bitmap --disable $img c
start_nbdkit $img
if nbdinfo --is readonly "$uri"; then fail "it is read-only"; fi
stop_nbdkit
before=$(fingerprint $img)
fails_with 'would need too much memory' "$IMG" bitmap --enable $img c
[ "$before" = "$(fingerprint $img)" ]
refused_untouched 'would need too much memory' $img resize=+1G
"$IMG" bitmap --disable $img b
start_and_end $img resize=+1G
check_clean $img
