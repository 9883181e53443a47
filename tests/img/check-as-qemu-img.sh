#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img check says of an image, in words and in JSON, what qemu-img check says
# of it, and exits with the same status; and so do repairs.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

# counters FILE: JSON, with its keys in order.  (A repair writes new refcounts, so the image
# ends elsewhere.)
counters ()
{
  "$python" -c 'import json, sys
found = json.load(open(sys.argv[1]))
if sys.argv[2]:
    del found["image-end-offset"]
print(json.dumps(found, indent=1, sort_keys=True))' "$1" "${repaired:-}"
}

# check_both STATUS ARGUMENT...: with this status, the same counters, and the same summary.
check_both ()
{
  local expected="$1"
  shift

  both_status check --output=json "$@"
  [ "$status" = "$expected" ] || fail "status $status: $*"
  diff <(counters theirs.out) <(counters ours.out)
}

# plain_check FILE: the summary, in words.
plain_check ()
{
  both_status check "$1"
  diff <(grep -v -e '^ERROR' -e '^Leaked' theirs.out) ours.out
}

in_both qemu-img create -q -f qcow2 disk.qcow2 10M
plain_check disk.qcow2
in_both qemu-io -f qcow2 -c 'write -P 1 0 2M' -c 'write -P 2 5M 100k' disk.qcow2
in_both qemu-img snapshot -c one disk.qcow2
in_both qemu-io -f qcow2 -c 'write -P 3 1M 64k' disk.qcow2
check_both 0 disk.qcow2
check_both 0 -f qcow2 -U disk.qcow2
plain_check disk.qcow2
in_both qemu-img convert -c -O qcow2 disk.qcow2 small.qcow2
check_both 0 small.qcow2
plain_check small.qcow2
in_both qemu-img create -q -f qcow2 -b disk.qcow2 -F qcow2 over.qcow2
check_both 0 over.qcow2
both check -q disk.qcow2

in_both cp disk.qcow2 good.qcow2
# Leaks: a cluster at the end that is counted and not used.
leak ()
{
  header_patch disk.qcow2 $((0x20000 + 2 * 300)) H 1
  truncate -s $((301 * 65536)) disk.qcow2
}
in_both leak
check_both 3 disk.qcow2
plain_check disk.qcow2
in_both cp disk.qcow2 again.qcow2
repaired=yes
check_both 0 -r leaks disk.qcow2
check_both 0 disk.qcow2
same_image qcow2 disk.qcow2
check_both 0 -r all again.qcow2
both_status check -r all disk.qcow2
[ "$status" = 0 ]

# Corruptions: a cluster in use that is not counted.
in_both cp good.qcow2 disk.qcow2
unset repaired
in_both header_patch disk.qcow2 $((0x20000 + 2 * 5)) H 0
check_both 2 disk.qcow2
in_both cp disk.qcow2 again.qcow2
# Leaks alone are not repaired where more is wrong (qemu-img does, see the manual).
if (cd ours && img check -q -r leaks again.qcow2); then fail "repaired"; fi
repaired=yes
check_both 0 -r all disk.qcow2
check_both 0 disk.qcow2
same_image qcow2 disk.qcow2

# Not closed properly: with lazy refcounts, and by nbdkit.  (A repair by nbdkit writes new
# refcounts, qemu-img corrects them.)
qemu-img create -q -f qcow2 -o lazy_refcounts=on theirs/lazy.qcow2 10M
qemu-io -f qcow2 -c 'write -P 1 0 1M' -c 'sigraise 9' theirs/lazy.qcow2 || :
cp theirs/lazy.qcow2 ours
unset repaired
check_both 2 lazy.qcow2
(cd ours && img check -q -r all lazy.qcow2 && check_clean lazy.qcow2)
"$NBDKIT" -U - "$PLUGIN" ours/marked.qcow2 create=10M --run true
start_nbdkit ours/marked.qcow2
nbdsh_run -c 'h.pwrite(b"x" * 300000, 0); h.flush(); h.pwrite(b"x" * 300000, 3000000)' \
  -c 'import os, signal; os.kill('"$nbdkit_pid"', signal.SIGKILL)'
wait "$nbdkit_pid" || :
unset "server_pid[main]"
cp ours/marked.qcow2 theirs
check_both 3 marked.qcow2
(cd ours && img check -q -r leaks marked.qcow2 && check_clean marked.qcow2)

# No refcount table at all: only a repair can use the image.
in_both cp good.qcow2 disk.qcow2
in_both header_patch disk.qcow2 48 Q 0 56 I 0
check_both 2 disk.qcow2
plain_check disk.qcow2
(cd theirs && qemu-img check -r all disk.qcow2)
img_refused 'the image has no refcount table' info disk.qcow2
img_refused 'the image has no refcount table' convert disk.qcow2 new.qcow2
(cd ours && img check -q -r all disk.qcow2 && img check -q disk.qcow2)
same_image qcow2 disk.qcow2

# Encrypted: no passphrase is needed.
in_both qemu-img create -q -f qcow2 --object secret,id=s,data=abc \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 luks.qcow2 4M
both_status check --object secret,id=s,data=abc --image-opts \
  driver=qcow2,file.filename=luks.qcow2,encrypt.key-secret=s
[ "$status" = 0 ]
(cd ours && img check luks.qcow2)

# Marked corrupt: it is told, and how to repair it.
in_both cp good.qcow2 disk.qcow2
in_both header_patch disk.qcow2 72 Q 2
check_both 0 disk.qcow2
grep 'disk.qcow2: it is marked corrupt.*check -r all' ours.err
check_both 0 -r all disk.qcow2
check_both 0 disk.qcow2
[ ! -s ours.err ]

# More is wrong than can be repaired.
in_both header_patch disk.qcow2 l2 Q +512
(cd ours && cp disk.qcow2 before)
status=0
(cd ours && img check -r all disk.qcow2) 2> ours.err || status=$?
[ "$status" = 2 ]
grep 'disk.qcow2: cannot be repaired: more is wrong than refcounts.*nothing was changed' ours.err
cmp ours/disk.qcow2 ours/before

in_both qemu-img create -q -f qcow2 -o refcount_bits=1 twice.qcow2 1M
in_both qemu-io -f qcow2 -c 'write 0 128k' twice.qcow2
in_both header_patch twice.qcow2 l2+8 Q 0x8000000000050000
both_status check twice.qcow2
[ "$status" = 2 ]
head -c 100000 theirs/good.qcow2 > ours/short.qcow2
# Where the refcount table cannot be: qemu-img makes a new one.
for offset in 0 1073741824; do
  cp theirs/good.qcow2 ours/table$offset.qcow2
  header_patch ours/table$offset.qcow2 48 Q $offset
done
for bad in twice short table0 table1073741824; do
  (cd ours && cp $bad.qcow2 before)
  if (cd ours && img check -r all $bad.qcow2) 2> ours.err; then fail "repaired"; fi
  grep 'cannot .*repair.*nothing was changed' ours.err
  cmp ours/$bad.qcow2 ours/before
done

# What cannot be checked, and why not.
in_both qemu-img create -q -f qcow2 -u -b missing -F qcow2 lost.qcow2 1M
both_status check lost.qcow2
[ "$status" = 1 ]
grep 'lost.qcow2: incomplete: .*missing: cannot open' ours.err
in_both qemu-img create -q -f qcow2 -o data_file=lost.data split.qcow2 1M
in_both rm lost.data
both_status check split.qcow2
[ "$status" = 1 ]
grep 'split.qcow2: incomplete: .*lost.data: cannot open: No such file.*the external data file of .*/split.qcow2: use --image-opts' ours.err
# Cut off, before or in the middle of its tables.
for bytes in 1000 65536 131072; do
  head -c $bytes theirs/good.qcow2 > theirs/short.qcow2
  cp theirs/short.qcow2 ours
  both_status check short.qcow2
  [ "$status" = 2 ]
  grep 'the end of the file\|the file ends' ours.err
done
in_both qemu-img create -q -f raw disk.raw 1M
both_status check disk.raw
[ "$status" = 63 ]
for bad in none.qcow2 "-T no disk.qcow2" "-f qcow2 disk.raw" "-r some disk.qcow2" "disk.qcow2 over.qcow2" \
    "" "--output=xml disk.qcow2" "--none disk.qcow2"; do
  # shellcheck disable=SC2086
  both_status check $bad
  [ "$status" = 1 ]
done
img_refused "'vmdk' is not supported" check -f vmdk disk.qcow2
printf 'KDMV0000' > ours/disk.vmdk
img_refused "'vmdk' is not supported" check disk.vmdk

# Only -U looks at an image that another program writes.
cd ours
start_nbdkit over.qcow2
hold_connection
cd ..
img_refused 'is another process using the image' check over.qcow2
(cd ours && img check -U over.qcow2)
