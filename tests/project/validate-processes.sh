#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-validate looks at each image in a process of its own: if one dies or hangs,
# this is an error of that image, and the others go on.  None survives the program.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
cd "$tmp"
make_image a.qcow2 1M
make_image huge.qcow2 100T      # to hash it takes a day

# hashes PROGRAM: its process has worked for so long that it can only be hashing.
hashes ()
{
  worker=$(pgrep -P "$1") && [ "$(cut -d ' ' -f 14 "/proc/$worker/stat")" -gt 20 ]
}

# begin: validates both, in the background, and waits until only the large one is left.
begin ()
{
  "$abs_top_builddir/img/nbdkit-qcow2-img" validate --hash --jobs 2 --json report.json \
    huge.qcow2 a.qcow2 > out &
  program=$!
  helper_pids+=("$program")
  until grep -q '^ok .* a.qcow2: read$' out; do sleep 0.05; done
  await -p "$program" hashes "$program"
}

# is_over PID: there is no such process, or nobody has taken notice of its end.
is_over ()
{
  [ ! -e "/proc/$1" ] || grep -q '^State:.*Z' "/proc/$1/status"
}

begin
kill -KILL "$worker"
status=0
wait "$program" || status=$?
cat out
[ "$status" = 3 ]
grep -A 1 '^not ok 4 - huge.qcow2: read$' out | grep 'killed by signal 9'
grep '^ok 3 - huge.qcow2: check$' out
"$python" -c 'import json
print(*[i["verdict"] for i in json.load(open("report.json"))["images"]])' |
  grep -x 'error valid'

# A process that hangs is late.
kill_stopped ()
{
  # (It is killed as late, too, if this comes after the time limit.)
  if await -p "$1" hashes "$1"; then kill -STOP "$worker" || :; fi
}
"$abs_top_builddir/img/nbdkit-qcow2-img" validate --hash --timeout 2 huge.qcow2 > out &
program=$!
kill_stopped "$program"
status=0
wait "$program" || status=$?
cat out
[ "$status" = 3 ]
grep 'took longer than 2 seconds' out

# So is one that hangs when it opens the image.
requires strace -f -P / -e trace=openat -e inject=openat:signal=CONT true
status=0
strace -f -qq -o /dev/null -P a.qcow2 -e trace=openat -e inject=openat:signal=STOP \
  "$abs_top_builddir/img/nbdkit-qcow2-img" validate --timeout 2 a.qcow2 > out || status=$?
cat out
[ "$status" = 3 ]
grep 'opening it took longer than 2 seconds' out

begin
kill -KILL "$program"
until is_over "$worker"; do sleep 0.05; done
