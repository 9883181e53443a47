#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img compare finds and says what qemu-img compare finds and says, with the
# same exit status, for disks that differ anywhere, in size or in nothing.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"


compared ()
{
  local expected="$1"
  shift
  both compare "$@"
  [ "$status" = "$expected" ] || fail "exit status $status: $*"
}

in_both qemu-img create -q -f qcow2 a.qcow2 10M
in_both qemu-io -f qcow2 -c 'write -P 1 0 2M' -c 'write -P 2 5M 100k' a.qcow2
in_both qemu-img convert a.qcow2 a.raw
in_both qemu-img convert -c -O qcow2 -o cluster_size=512 a.qcow2 c.qcow2
in_both qemu-img create -q -f qcow2 -b a.qcow2 -F qcow2 over.qcow2
in_both cp a.qcow2 zeros.qcow2
in_both qemu-io -f qcow2 -c 'write -P 0 8M 64k' -c 'write -z 3M 64k' zeros.qcow2
in_both qemu-img create -q -f qcow2 larger.qcow2 20M
in_both qemu-img create -q -f raw smaller.raw 1M

before=$(fingerprint ours/a.qcow2; fingerprint ours/a.raw)
for other in a.qcow2 a.raw c.qcow2 over.qcow2 zeros.qcow2; do
  compared 0 a.qcow2 "$other"
  compared 0 -q "$other" a.qcow2
done
[ "$before" = "$(fingerprint ours/a.qcow2; fingerprint ours/a.raw)" ]
compared 0 -f qcow2 -F raw a.qcow2 a.raw
compared 0 -s a.qcow2 a.qcow2
in_both qemu-img compare -q larger.qcow2 larger.qcow2
compared 1 larger.qcow2 a.raw
compared 1 a.raw larger.qcow2
compared 1 a.qcow2 smaller.raw
compared 1 -s a.qcow2 larger.qcow2
compared 1 -s a.qcow2 smaller.raw
in_both cp a.qcow2 grown.qcow2
in_both qemu-img resize -q grown.qcow2 30M
compared 0 a.qcow2 grown.qcow2
compared 0 grown.qcow2 a.raw
in_both qemu-io -f qcow2 -c 'write -P 1 29M 3k' grown.qcow2
compared 1 a.qcow2 grown.qcow2
compared 1 -q grown.qcow2 a.raw

# One byte, anywhere.
for ((i = 0; i < 10; ++i)); do
  at=$((RANDOM * 32768 + RANDOM)) at=$((at % (10 << 20)))
  in_both cp a.qcow2 b.qcow2
  in_both qemu-io -f qcow2 -c "write -P 77 $at 1" b.qcow2
  compared 1 a.raw b.qcow2
  grep "Content mismatch at offset $((at / 512 * 512))!" ours.out
done

# Pieces of the disk are all over the file, or not as they are in it.
write=(qemu-io -f qcow2)
for ((i = 0; i < 40; ++i)); do
  write+=(-c "write -P $((i + 1)) $((RANDOM % 2540 * 4))k $((RANDOM % 20 * 4 + 4))k")
done
for options in cluster_size=4k cluster_size=64k,extended_l2=on data_file=out; do
  for dir in ours theirs; do
    rm -f $dir/f.qcow2 $dir/out
    cp ours/a.raw $dir/base.raw
    (cd $dir && qemu-img create -q -f qcow2 -o "$options" f.qcow2 10M)
    [ $options = data_file=out ] ||
      (cd $dir && qemu-img rebase -q -u -f qcow2 -F raw -b base.raw f.qcow2)
    (cd $dir && "${write[@]}" f.qcow2)
    (cd $dir && qemu-img convert f.qcow2 f.raw)
  done
  compared 0 f.qcow2 f.raw
  for ((i = 0; i < 5; ++i)); do
    at=$((RANDOM * 32768 + RANDOM)) at=$((at % (10 << 20)))
    in_both cp f.raw g.raw
    in_both qemu-io -f raw -c "write -P 177 $at 1" g.raw
    compared 1 f.qcow2 g.raw
    grep "Content mismatch at offset $((at / 512 * 512))!" ours.out
  done
done
in_both qemu-img create -q -f qcow2 -o cluster_size=4k f.qcow2 10M
# (qemu-io compresses only what was not written before.)
in_both qemu-io -f qcow2 -c 'write -c -P 9 4M 4k' -c 'write -c -P 8 4136k 4k' f.qcow2
in_both "${write[@]}" f.qcow2
in_both qemu-img convert f.qcow2 f.raw
compared 0 f.qcow2 f.raw
compared 0 -U f.qcow2 f.raw

# A raw disk ends with a sector.
head -c 1000 /dev/zero > one.raw
head -c 1024 /dev/zero > two.raw
head -c 1500 /dev/zero > three.raw
(cat one.raw && printf x) > other.raw
in_both cp "$tmp"/{one,two,three,other}.raw .
compared 0 -f raw -F raw one.raw two.raw
compared 0 -f raw -F raw three.raw one.raw
for name in one two three; do
  compared 1 -f raw -F raw $name.raw other.raw
  compared 1 -f raw -F raw other.raw $name.raw
done

# What both know to be zeros is not read.
qemu-img create -q -f qcow2 -o cluster_size=2M ours/huge.qcow2 8T
truncate -s 8T ours/huge.raw
"${soon[@]}" "$IMG" compare -f qcow2 -F raw ours/huge.qcow2 ours/huge.raw

# Encrypted.
qemu-img convert -O qcow2 --object secret,id=s,data=x -o encrypt.format=luks \
  -o encrypt.key-secret=s,encrypt.iter-time=10 ours/a.raw ours/luks.qcow2
img compare --object secret,id=s,data=x ours/luks.qcow2 ours/a.raw

# A faulty entry.
qemu-img create -q -f qcow2 ours/damaged.qcow2 8M
qemu-io -f qcow2 -c 'write -P 1 0 64k' ours/damaged.qcow2
header_patch ours/damaged.qcow2 $((0x40000)) Q $((0x8000000000000000 | 0x50200))
for pair in "damaged.qcow2 a.qcow2" "a.qcow2 damaged.qcow2"; do
  ours=0
  # shellcheck disable=SC2086
  ({ set +x; } 2>&-; cd ours && img compare $pair) 2> ours.err || ours=$?
  grep 'L2 entry' ours.err
  [ "$ours $(wc -l < ours.err)" = "4 1" ]
done

for bad in "none.qcow2 a.qcow2" "a.qcow2 none.qcow2" "-f qcow2 a.raw a.raw" \
  "-T bad a.qcow2 a.qcow2" "-f bad a.qcow2 a.qcow2" "-F bad a.qcow2 a.qcow2" \
  "--object bad a.qcow2 a.qcow2"; do
  # shellcheck disable=SC2086
  both_status compare $bad
  [ "$status" = 2 ]
  [ "$(wc -l < ours.err)" = 1 ]
done
# Wrong usage: qemu-img says that with the status of a difference.
for bad in "compare a.qcow2" "compare a.qcow2 a.qcow2 a.qcow2" "compare" "compare -f" \
  "compare -x a.qcow2 a.qcow2" "compare --bad a.qcow2 a.qcow2" \
  "--control socket compare a.qcow2 a.qcow2"; do
  ours=0
  # shellcheck disable=SC2086
  ({ set +x; } 2>&-; cd ours && img $bad) 2> ours.err || ours=$?
  [ "$ours $(wc -l < ours.err)" = "2 1" ]
done

# The server of an export lives on if disks differ early, and if they cannot be read.
serve ()
{
  rm -f "$sockdir/export.sock" export.pid
  "$NBDKIT" -r -U "$sockdir/export.sock" -P export.pid "$@"
  # (It is the process in the background that writes it.)
  await test -s export.pid
  helper_pids+=("$(cat export.pid)")
  uri="nbd+unix:///?socket=$sockdir/export.sock"
}

# What cannot be read, or told, does not mean that they differ.  A difference before it
# counts.  unreadable FILE OFFSET STATUS: byte OFFSET of FILE, beside f.raw, cannot be read.
unreadable ()
{
  serve eval get_size="stat -c %s $1" pread="
    if [ \$4 -le $2 ] && [ $2 -lt \$((\$4 + \$3)) ]; then echo EIO >&2; exit 1; fi
    dd if=$1 iflag=skip_bytes,count_bytes skip=\$4 count=\$3 status=none"
  for pair in "ours/f.raw $uri" "$uri ours/f.raw"; do
    ours=0
    # shellcheck disable=SC2086
    ({ set +x; } 2>&-; img compare -f raw -F raw $pair) > ours.out 2> ours.err || ours=$?
    cat ours.out ours.err
    [ "$ours" = "$3" ]
  done
}
in_both qemu-io -f qcow2 -c 'write -P 5 3M 3M' f.qcow2
in_both qemu-img convert f.qcow2 f.raw
cp ours/f.raw g.raw
unreadable "$PWD/g.raw" $((5 << 20)) 4
grep 'Input/output error' ours.err
qemu-io -f raw -c 'write -P 177 2M 1' g.raw
unreadable "$PWD/g.raw" $((9 << 20)) 1
for other in f.raw f.qcow2; do
  ours=0
  ({ set +x; } 2>&-; cd ours && img compare f.raw $other > /dev/full) 2> ours.err ||
    ours=$?
  [ "$ours $(wc -l < ours.err)" = "4 1" ]
done
ours=0
({ set +x; } 2>&-; img compare --help > /dev/full) || ours=$?
[ "$ours" = 4 ]

# The server of an export lives on.
in_both qemu-img create -q -f raw zeros.raw 10M
serve file ours/f.raw
for ((i = 0; i < 10; ++i)); do
  status=0
  img compare "$uri" ours/zeros.raw > ours.out || status=$?
  grep 'Content mismatch' ours.out
  [ "$status" = 1 ]
done
serve --filter=error file ours/f.raw error-pread=EIO error-pread-rate=100% \
  error-pread-file="$tmp/broken"
for ((i = 0; i < 10; ++i)); do
  : > broken
  ours=0
  ({ set +x; } 2>&-; img compare -f raw -F raw "$uri" ours/f.raw) 2> ours.err || ours=$?
  cat ours.err
  [ "$ours" = 4 ]
  grep -F 'Input/output error' ours.err
  rm broken
done
img compare "$uri" ours/f.raw
