#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img shows how far a command is: on a terminal, under its own name, from 0 to
# 100 without a step back, in a line that disappears; with -p in lines, as qemu-img; and
# in a pipe without -p not at all.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

# Little data in large pieces of a disk, each of which takes
# more than half a second.
"$NBDKIT" -f -U "$sockdir/slow.sock" -P "$tmp/slow.pid" --filter=noparallel \
  --filter=delay data delay-read=600ms size=640M \
  '@0 1 @0x8000000 1 @0x10000000 1 @0x18000000 1 @0x20000000 1' &
helper_pids+=($!)
until [ -s "$tmp/slow.pid" ]; do sleep 0.02; done
slow="nbd+unix:///?socket=$sockdir/slow.sock"
cd ours

# on_terminal NAME ARGUMENT...: what the command shows there.
on_terminal ()
{
  "$python" - "$1" "$IMG" "${@:2}" <<'PY'
import os, pty, re, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
text = b""
try:
    while piece := os.read(terminal, 65536):
        text += piece
except OSError:
    pass                        # it has ended
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, text
print(text)
shown, erased, rest = text.decode().rpartition("\x1b[K\r")
steps = [int(n) for n in re.findall(r"%s: +(\d+) %%\x1b\[K\r" % sys.argv[1], shown + erased)]
assert steps and steps == sorted(steps) and steps[-1] <= 100, steps
assert not re.sub(r"%s: +\d+ %%\x1b\[K\r" % sys.argv[1], "", shown + erased).strip("\x1b[K\r")
assert "%s: " % sys.argv[1] not in rest, rest
PY
}

over_slow ()
{
  rm -f over.qcow2
  qemu-img create -q -f qcow2 -u -b "$slow" -F raw over.qcow2 640M
}

on_terminal convert convert -m 1 -O raw "$slow" new.raw
on_terminal convert convert -m 1 -c -O qcow2 "$slow" new.qcow2
on_terminal dd dd bs=1M -f raw -O raw if="$slow" of=new.raw
on_terminal compare compare "$slow" new.raw
over_slow
on_terminal compare compare --allow-uri "$slow" over.qcow2 new.raw
on_terminal convert convert --allow-uri "$slow" -O raw over.qcow2 new.raw
on_terminal rebase rebase --allow-uri "$slow" -b '' over.qcow2

# A check, whose time is that of many small reads.
qemu-img create -q -f qcow2 -o cluster_size=512 many.qcow2 10M
qemu-io -f qcow2 -c 'write -q -P 1 0 10M' many.qcow2
"$NBDKIT" -f -r -U "$sockdir/many.sock" -P "$tmp/many.pid" --filter=noparallel \
  --filter=delay file many.qcow2 delay-read=10ms &
helper_pids+=($!)
until [ -s "$tmp/many.pid" ]; do sleep 0.02; done
many="nbd+unix:///?socket=$sockdir/many.sock"
on_terminal check check --allow-uri "$many" "$many"

# In a pipe.
piped ()
{
  ({ set +x; } 2>&-; img "$@") > out 2>&1
  cat out
}
# Lines from 0 to 100, and a line end.
told ()
{
  tr '\r' '\n' < out > lines
  sed -n 's/^    (\([0-9.]*\)\/100%)$/\1/p' lines > steps
  [ "$(wc -l < steps)" -ge 4 ]
  sort -C -n steps
  [ "$(head -n 1 steps)-$(tail -n 1 steps)" = 0.00-100.00 ]
  [ "$(grep -vc '^    ([0-9.]*/100%)$' lines)" = 1 ]
}
over_slow
piped convert --allow-uri "$slow" -O raw over.qcow2 new.raw
[ ! -s out ]
piped convert -p --allow-uri "$slow" -O raw over.qcow2 new.raw
told
piped rebase -p --allow-uri "$slow" -b '' over.qcow2
told
over_slow
piped rebase -q -p --allow-uri "$slow" -b '' over.qcow2
[ ! -s out ]
piped check --allow-uri "$many" "$many"
if grep '/100%' out; then fail "shown in a pipe"; fi
piped check -p --allow-uri "$many" "$many"
grep 'No errors were found' out
sed -i 1q out
told
# A repair, and the checks before and after it, are on one scale.
header_patch many.qcow2 48 Q 0 56 I 0
img check -p -r all many.qcow2 > out 2> err
sed -i 1q out
told
check_clean many.qcow2

# Space that is allocated ahead of time.
fills ()
{
  piped "$@"
  grep '/100%' out > progress
  mv progress out
  told
}
for format in qcow2 raw; do
  fills create -p -f "$format" -o preallocation=full new."$format" 64M
  fills resize -p -f "$format" --preallocation=full new."$format" +64M
  fills resize -p -f "$format" --preallocation=falloc new."$format" +4G
done
fills convert -p -O qcow2 -o preallocation=full many.qcow2 new.qcow2
fills convert -p -o preallocation=full many.qcow2 new.raw
piped create -o preallocation=full new.raw 64M
if grep '/100%' out; then fail "shown in a pipe"; fi
