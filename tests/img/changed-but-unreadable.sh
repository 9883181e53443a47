#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If an image cannot be read any more by one of the system calls, from any moment on,
# while a command changes it, the exit status is 1 whenever the command has reported an
# error, also if the change was made.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -e trace=pread64 -e inject=pread64:error=EIO:when=1 -P /dev/null true
cd ours

amended=0
for call in pread64 preadv; do
  for ((n = 1; ; n++)); do
    make_image a.qcow2 10M compat=0.10
    status=0
    strace -f -qq -o /dev/null -e trace=$call -e "inject=$call:error=EIO:when=$n+" \
      -P "$PWD/a.qcow2" "$IMG" amend -o compat=1.1 a.qcow2 2> err || status=$?
    cat err
    [ "$status" = "$(grep -c . err | sed 's/^[1-9].*/1/')" ] || fail "exit status $status"
    if [ "$status" = 0 ]; then break; fi
    if qemu-img info a.qcow2 | grep 'compat: 1.1'; then amended=$((amended + 1)); fi
    check_leaks_only a.qcow2
  done
done
[ "$amended" -gt 0 ] || fail "no error after the change"
