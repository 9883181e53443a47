#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# While nbdkit-qcow2-img convert, dd or create makes what replaces a file, no other program
# can open that file to write to it, as with qemu-img; who opened it earlier, but did not
# lock it, finds no disk there afterwards.  What appears under the name of a new image
# meanwhile is not replaced.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires "$NBDKIT" eval --version

# A source that is read when the test wants.
export GATE="$tmp/gate"
mkfifo "$GATE"
"$NBDKIT" -f -U "$sockdir/slow.sock" -P slow.pid eval get_size='echo 1M' \
  pread='if [ -p "$GATE" ]; then touch "$GATE.reached"; read -r _ < "$GATE"; fi
         head -c "$3" /dev/zero' &
helper_pids+=($!)
await -p $! test -s slow.pid
slow="nbd+unix:///?socket=$sockdir/slow.sock"

# begin ARGUMENT...: starts our program; it reads the source now, and waits.
begin ()
{
  rm -f "$GATE" "$GATE.reached"
  mkfifo "$GATE"
  "$IMG" "$@" 2> err &
  making=$!
  helper_pids+=("$making")
  while [ ! -e "$GATE.reached" ] && kill -0 "$making"; do sleep 0.02; done
}

# finish: lets it read.  Its exit status is in $status.
finish ()
{
  mv "$GATE" "$GATE.open"
  # Whoever waits at the old name.
  exec 9<> "$GATE.open"
  printf '\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n' >&9
  status=0
  wait "$making" || status=$?
  exec 9>&-
  cat err
}

for format in qcow2 raw; do
  for how in "convert -f raw -O $format $slow there" \
      "dd -f raw -O $format if=$slow of=there"; do
    rm -f there
    qemu-img create -q -f "$format" there 2M
    # shellcheck disable=SC2086
    begin $how
    if qemu-io -f "$format" -c 'write -P 1 0 512' there; then fail "QEMU wrote to it"; fi
    if [ "$format" = qcow2 ]; then refused 'cannot get the' there; fi
    exec 7< there
    finish
    [ "$status" = 0 ]
    qemu-io -f "$format" -c 'read -P 0 0 1M' -c 'write -P 1 0 512' there
    [ "$(stat -L -c %s /proc/$$/fd/7)" = 0 ] || fail "the old disk is still there"
    exec 7<&-
  done
done
# Another name keeps the old disk.
qemu-img create -q -f raw there.raw 2M
ln there.raw hard
img convert -f raw "$slow" there.raw
[ "$(file_size hard):$(file_size there.raw)" = 2097152:1048576 ]

# What appears, disappears or changes its place meanwhile is not lost.
for how in "convert -f raw -O qcow2 $slow" "convert -f raw -m 4 $slow"; do
  rm -f new
  # shellcheck disable=SC2086
  begin $how new
  qemu-img create -q -f qcow2 new 3M
  finish
  [ "$status" = 1 ]
  grep 'another program has' err
  [ "$(virtual_size new)" = 3145728 ]

  # shellcheck disable=SC2086
  begin $how new
  mv new moved
  finish
  [ "$status" = 1 ]
  [ "$(virtual_size moved)" = 3145728 ]
  [ ! -e new ]

  qemu-img create -q -f qcow2 new 3M
  # shellcheck disable=SC2086
  begin $how new
  mv moved new
  finish
  [ "$status" = 1 ]
  [ "$(virtual_size new)" = 3145728 ]
done
[ -z "$(ls -A private)" ]
# shellcheck disable=SC2010
if ls -A | grep -F .qcow2-img; then fail "something is left"; fi
