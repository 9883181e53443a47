#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img rebase changes the backing file of an image, with and without copying, as
# qemu-img rebase does.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

make_chain ()
{
  in_both rm -f ./*.qcow2
  in_both qemu-img create -q -f qcow2 old.qcow2 5M
  in_both qemu-io -f qcow2 -c 'write -P 1 0 2M' old.qcow2
  in_both qemu-img create -q -f qcow2 new.qcow2 4M
  in_both qemu-io -f qcow2 -c 'write -P 1 1M 1M' -c 'write -P 2 3M 1M' new.qcow2
  in_both qemu-img create -q -f qcow2 -b old.qcow2 -F qcow2 over.qcow2
  in_both qemu-io -f qcow2 -c 'write -P 7 1500k 1M' over.qcow2
}

# rebased ARGUMENT...: the same disk as before, over the same backing file as with qemu-img.
rebased ()
{
  make_chain
  qemu-img convert -O raw ours/over.qcow2 before
  both rebase "$@" over.qcow2
  same_image qcow2 over.qcow2
  qemu-img compare -q -f raw -F qcow2 before ours/over.qcow2
}

in_both qemu-img create -q -f raw new.raw 3M
rebased -b new.qcow2 -F qcow2
rebased -f qcow2 -b new.raw -F raw -q -t none -T none -p
rebased -b ""
rebased -b old.qcow2 -F qcow2
rebased -u -b ./old.qcow2 -F qcow2

# Without copying: another disk, or one that cannot be used.
make_chain
both rebase -u -b new.qcow2 -F qcow2 over.qcow2
same_image qcow2 over.qcow2
both rebase -u -b none.qcow2 -F qcow2 over.qcow2
diff <(cd theirs && facts qcow2 over.qcow2) <(cd ours && facts qcow2 over.qcow2)
both rebase -u -b "" over.qcow2
same_image qcow2 over.qcow2

make_chain
before=$(fingerprint ours/over.qcow2)
for bad in "-b none.qcow2 -F qcow2 over.qcow2" "-b new.qcow2 -F vmdk over.qcow2" over.qcow2 \
    "-b new.qcow2 -F qcow2 none.qcow2" "-f qcow2 -b new.qcow2 -F qcow2 new.raw"; do
  # shellcheck disable=SC2086
  both_status rebase $bad
  [ "$status" = 1 ]
done
img_refused 'format of the backing file' rebase -b new.qcow2 over.qcow2
[ "$before" = "$(fingerprint ours/over.qcow2)" ]

# Where there is no space it says so, and what to do then.  (The size of files is limited.)
make_chain
in_both qemu-img convert -O raw over.qcow2 shown.raw
for command in "rebase -b" "commit"; do
  operands=(over.qcow2)
  [ "$command" = commit ] || operands=("" over.qcow2)
  limit=$(($(stat -c %s ours/over.qcow2 ours/old.qcow2 | sort -n | tail -n 1) / 1024))
  status=0
  # shellcheck disable=SC2086
  ({ set +x; } 2>&-; trap '' XFSZ; ulimit -f "$limit"; cd ours
   img $command "${operands[@]}") 2> ours.err || status=$?
  cat ours.err
  [ "$status $(wc -l < ours.err)" = "1 2" ]
  grep -E 'too large|file sizes' ours.err
  grep -E ' failed after .*; run the command again' ours.err
  qemu-img compare ours/shown.raw ours/over.qcow2
done
