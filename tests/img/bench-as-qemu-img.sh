#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img bench prints, writes and refuses what qemu-img bench does.  A server that
# counts: as many requests as -d says are in flight, each at its place, and a flush waits for
# those before it, and lets none go on before it has ended, or with --no-drain does neither.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires_filter log

# benched ARGUMENT...: the same output but for the time, and the same exit status.
benched ()
{
  both_status bench "$@"
  [ "$status" = 0 ] || fail "exit status $status: $*"
  sed -i 's/ in [0-9]\+\.[0-9]\{3\} seconds\.$/ in SOME seconds./' theirs.out ours.out
  diff theirs.out ours.out
  grep 'Run completed in SOME seconds' ours.out
}

in_both qemu-img create -q -f raw base.raw 3M
in_both qemu-io -f raw -c 'write -P 9 0 3M' base.raw
in_both qemu-img create -q -f qcow2 -b base.raw -F raw disk.qcow2
in_both qemu-img create -q -f qcow2 -o cluster_size=4k,extended_l2=off small.qcow2 1M
in_both cp base.raw disk.raw

benched disk.qcow2
benched -c 100 -d 1 -f qcow2 disk.qcow2
benched -c 0x10 -d 300 -s 64k -o 1M disk.qcow2
benched -c 50 -s 1.5k -S 512 -o 512 -f raw disk.raw
benched -c 3 -S 0 --pattern 7 --no-drain -U small.qcow2
benched -c 3 -i threads -t none small.qcow2
benched -c 0 --image-opts driver=qcow2,file.filename=small.qcow2
same_image qcow2 disk.qcow2
same_image qcow2 small.qcow2

# (The disk begins anew after its end.)
benched -w -c 20 -d 4 -s 3k -S 64k --pattern=0x11 disk.qcow2
benched -w -c 60 -d 4 -s 64k -o 64k --pattern=8 --flush-interval=4 disk.qcow2
benched -w -c 40 -d 8 -s 512 -S 5k -o 1k --pattern=5 --flush-interval=9 --no-drain small.qcow2
benched -w -c 20 -t none -f raw --pattern=255 disk.raw
same_image qcow2 disk.qcow2
same_image qcow2 small.qcow2
same_image raw disk.raw

for bad in "" "disk.qcow2 disk.qcow2" none.qcow2 "-c x disk.qcow2" "-c 1k disk.qcow2" \
  "-c 2147483648 disk.qcow2" "-d x disk.qcow2" "-o -1 disk.qcow2" "-s 2G disk.qcow2" \
  "-S 2G disk.qcow2" "-i no disk.qcow2" "-t no disk.qcow2" "--pattern 256 disk.qcow2" \
  "--flush-interval 9 -d 1 disk.qcow2" "--flush-interval 3 -d 4 -w disk.qcow2" \
  "--flush-interval -1 -w disk.qcow2" "-U -w disk.qcow2" "-c 1 -s 4M disk.qcow2" \
  "-c 1 -o 3M disk.qcow2" "-w -c 1 -o 3145727 disk.qcow2" "-f qcow2 disk.raw"; do
  # shellcheck disable=SC2086
  both_status bench $bad
  [ "$status" = 1 ]
  [ "$(wc -l < ours.err)" = 1 ]
done
same_image qcow2 disk.qcow2
for depth in 0 1025; do img_refused "-d $depth: must be 1 to 1024" bench -d $depth disk.qcow2; done
img bench -q -c 3 ours/disk.qcow2 > out
[ ! -s out ]

# All of them at the same time: no answer comes before there are three requests.
mkdir in
cat > pread <<END
: > $tmp/in/\$4
until [ "\$(ls $tmp/in | wc -l)" -ge 3 ]; do :; done
head -c \$3 /dev/zero
END
PLUGIN=eval start_nbdkit_as eval thread_model='echo parallel' get_size='echo 1M' \
  pread="bash $tmp/pread "'"$@"'
img bench -f raw -c 3 -d 3 -o 4k -S 12k "$uri"
[ "$(ls in | sort -n | tr '\n' ' ')" = "4096 16384 28672 " ]
stop_nbdkit eval

# flushes EXPRESSION: is it true?  Of b and e: how many writes had begun, and how many had
# ended, at the begin and at the end of each flush.
flushes ()
{
  "$python" - "$1" log <<'PY'
import re, sys
begun = ended = 0
flights, where = [], []
for line in open(sys.argv[2]):
    m = re.search(r" (Write|Flush) id=.*\.\.\.$|\.\.\.(Write|Flush) id=", line.rstrip())
    if m is None:
        continue
    if m[1] == "Write":
        begun += 1
    elif m[2] == "Write":
        ended += 1
    else:
        where.append((bool(m[1]), begun, ended))
    assert begun - ended <= 4, line
print(where)
assert begun == ended == 40
assert eval(sys.argv[1]), where
PY
}
for drain in "" --no-drain; do
  PLUGIN=memory start_nbdkit_as log --filter=log -- 1M logfile="$tmp/log"
  # shellcheck disable=SC2086
  img bench -w -f raw -c 40 -d 4 --flush-interval=10 $drain "$uri"
  stop_nbdkit log
  if [ "$drain" ]; then
    flushes 'sum(w[0] for w in where) >= 2'
  else
    flushes '{w[1:] for w in where} == {(n, n) for n in (10, 20, 30, 40)}'
  fi
  rm log
done
