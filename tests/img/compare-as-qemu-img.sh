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

for other in a.qcow2 a.raw c.qcow2 over.qcow2 zeros.qcow2; do
  compared 0 a.qcow2 "$other"
  compared 0 -q "$other" a.qcow2
done
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

for bad in "none.qcow2 a.qcow2" "a.qcow2 none.qcow2" "-f qcow2 a.raw a.raw"; do
  # shellcheck disable=SC2086
  both_status compare $bad
  [ "$status" = 2 ]
  [ "$(wc -l < ours.err)" = 1 ]
done
for bad in a.qcow2 "a.qcow2 a.qcow2 a.qcow2" ""; do
  # shellcheck disable=SC2086
  both_status compare $bad
done

# What cannot be read, or told, does not mean that they differ.  A difference before it
# counts.  unreadable FILE OFFSET ARGUMENT...
unreadable ()
{
  ours=0
  ({ set +x; } 2>&-; cd ours
   /usr/bin/python3 - "$srcdir/../scripts/img.d" "$@") \
    > ours.out 2> ours.err << 'END' || ours=$?
import errno, os, sys
modules, name, offset = sys.argv[1:4]
sys.path[:0] = [modules, os.path.dirname(modules)]
real = os.preadv

def preadv(fd, buffers, at):
    if os.readlink("/proc/self/fd/%d" % fd).endswith("/" + name) and \
            at <= int(offset) < at + sum(len(b) for b in buffers):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return real(fd, buffers, at)

os.preadv = preadv
import cli
sys.exit(cli.main(["img", *sys.argv[4:]], ""))
END
  cat ours.out ours.err
}
in_both qemu-io -f qcow2 -c 'write -P 5 3M 3M' f.qcow2
in_both qemu-img convert f.qcow2 f.raw
in_both cp f.raw g.raw
for pair in "f.raw g.raw" "g.raw f.raw"; do
  # shellcheck disable=SC2086
  unreadable g.raw $((5 << 20)) compare $pair
  [ "$ours" = 4 ]
  [ "$(cat ours.err)" = "nbdkit-qcow2-img: g.raw: Input/output error" ]
done
in_both qemu-io -f raw -c 'write -P 177 4M 1' g.raw
unreadable g.raw $((5 << 20)) compare f.raw g.raw
[ "$ours" = 1 ]
unreadable g.raw $((3 << 20)) compare f.raw g.raw
[ "$ours" = 4 ]
for other in f.raw f.qcow2; do
  ours=0
  ({ set +x; } 2>&-; cd ours && img compare f.raw $other > /dev/full) 2> ours.err ||
    ours=$?
  [ "$ours $(wc -l < ours.err)" = "4 1" ]
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
  [ "$ours $(wc -l < ours.err)" = "4 1" ]
  grep -F "$uri: " ours.err | grep -F 'Input/output error'
  rm broken
done
img compare "$uri" ours/f.raw
