#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img amend changes the version and the features of an image as qemu-img amend
# does.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

in_both qemu-img create -q -f qcow2 base.qcow2 10M
in_both qemu-io -f qcow2 -c 'write -P 1 0 3M' base.qcow2
# (Wide counts of large clusters, after narrow ones, take qemu-img seconds.)
in_both qemu-img create -q -f qcow2 -o cluster_size=4k -b base.qcow2 -F qcow2 disk.qcow2
in_both qemu-io -f qcow2 -c 'write -P 2 1M 1M' -c 'write -z 2M 64k' disk.qcow2

for options in lazy_refcounts=on lazy_refcounts=off compat=0.10 compat=0.10 compat=1.1 \
    compat=v2 compat=v3,lazy_refcounts=yes refcount_bits=64 refcount_bits=1 \
    refcount_bits=16 refcount_bits=8,lazy_refcounts=off; do
  both amend -f qcow2 -o "$options" disk.qcow2
  same_image qcow2 disk.qcow2
done
in_both qemu-img create -q -f qcow2 -o data_file=data.raw,data_file_raw=on data.qcow2 1M
both amend -q -p -o data_file_raw=off data.qcow2
diff <(cd theirs && facts qcow2 data.qcow2) <(cd ours && facts qcow2 data.qcow2)

# Not possible in version 2; or not at all.
in_both qemu-img create -q -f qcow2 -o refcount_bits=8 narrow.qcow2 1M
in_both qemu-img create -q -f raw disk.raw 1M
before=$(fingerprint ours/disk.qcow2)
for bad in "-o compat=0.10 narrow.qcow2" "-o compat=7 disk.qcow2" disk.qcow2 \
    "-o cluster_size=4k disk.qcow2" "-o lazy_refcounts=maybe disk.qcow2" "-o compat=1.1" \
    "-o refcount_bits=3 disk.qcow2" "-o refcount_bits=0 disk.qcow2" \
    "-o refcount_bits=65 disk.qcow2" "-o refcount_bits=x disk.qcow2" \
    "-f raw -o size=1 disk.raw" "-o no=1 disk.qcow2" "-o compat=1.1 none.qcow2"; do
  # shellcheck disable=SC2086
  both_status amend $bad
  [ "$status" = 1 ]
done
[ "$before" = "$(fingerprint ours/disk.qcow2)" ]

# --- The size, which is not refused over a backing file, and with snapshots.
for options in size=11M,lazy_refcounts=on size=0x1400000,lazy_refcounts=off \
    size=20M; do
  both amend -o "$options" disk.qcow2
  same_image qcow2 disk.qcow2
done
both amend -f qcow2 -o size=2M data.qcow2
diff <(cd theirs && facts qcow2 data.qcow2) <(cd ours && facts qcow2 data.qcow2)
cmp theirs/data.raw ours/data.raw
in_both qemu-img create -q -f qcow2 -o compat=0.10 old.qcow2 1M
in_both qemu-io -f qcow2 -c 'write -P 3 0 1M' old.qcow2
in_both qemu-img snapshot -c snap old.qcow2
both_status amend -o size=2M old.qcow2
[ "$status" = 1 ]
both amend -o size=3M,compat=1.1 old.qcow2
same_image qcow2 old.qcow2
before=$(fingerprint ours/disk.qcow2)
for bad in size=20971521 size=x size= size size=-1 size=9E \
    lazy_refcounts=on,size=513; do
  both_status amend -o "$bad" disk.qcow2
  [ "$status" = 1 ]
done
# What is lost has to be named: qemu-img asks for that only in resize.
img_refused 'would become smaller: use resize --shrink' \
  amend -o lazy_refcounts=on,size=19M disk.qcow2
[ "$before" = "$(fingerprint ours/disk.qcow2)" ]
both amend --force -o lazy_refcounts=on,size=19M disk.qcow2
same_image qcow2 disk.qcow2
img_refused 'use rebase' amend -o backing_file=x disk.qcow2

# --- The name of the data file.  Nothing else changes, and the file need not be there.
in_both qemu-img create -q -f qcow2 -o data_file=first.raw,cluster_size=512 named.qcow2 1M
in_both qemu-io -f qcow2 -c 'write -P 5 0 64k' named.qcow2
in_both cp first.raw second.raw
for options in data_file=second.raw data_file=second.raw,size=2M \
    data_file=first.raw,lazy_refcounts=on data_file=gone.raw; do
  both amend -o "$options" named.qcow2
  diff <(cd theirs && facts qcow2 named.qcow2) <(cd ours && facts qcow2 named.qcow2)
done
img_refused 'gone.raw: .*use --image-opts with data-file.filename=PATH' map named.qcow2
second=driver=qcow2,file.filename=named.qcow2,data-file.filename=second.raw
(cd ours && img amend --image-opts -o data_file=second.raw "$second")
(cd ours && check_clean named.qcow2)
(cd ours && qemu-io -f qcow2 -c 'read -P 5 0 64k' -c 'read -P 0 64k 1M' named.qcow2) |
  tee read
if grep -i 'verification failed' read; then fail "not the same data"; fi
before=$(fingerprint ours/named.qcow2)
(cd theirs && qemu-img amend --image-opts -o data_file=second.raw \
  driver=qcow2,file.filename=named.qcow2,data-file.driver=file,data-file.filename=second.raw)
for bad in "data_file=second.raw disk.qcow2" "data_file=$(printf '%0500d' 0) named.qcow2"; do
  # shellcheck disable=SC2086
  both_status amend -o $bad
  [ "$status" = 1 ]
done
[ "$before" = "$(fingerprint ours/named.qcow2)" ]
both amend -o data_file= named.qcow2
diff <(cd theirs && facts qcow2 named.qcow2) <(cd ours && facts qcow2 named.qcow2)
img amend -o help | grep -E '^  compat '
