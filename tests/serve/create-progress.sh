#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Creating an image that takes longer than a second shows its progress on a terminal, and
# leaves a clean line; creating it faster, or without a terminal, shows nothing.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires strace -f -e trace=pwritev2 -e inject=pwritev2:delay_enter=1:when=9 true
cd "$tmp"

# on_terminal COMMAND...: what appears on it.
on_terminal ()
{
  "$python" - "$@" <<'PY'
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
text = b""
while True:
    try:
        piece = os.read(fd, 4096)
    except OSError:
        break
    if not piece:
        break
    text += piece
assert os.waitpid(pid, 0)[1] == 0
sys.stdout.write(repr(text))
PY
}

create=("$NBDKIT" -U - "$PLUGIN")
# One write takes longer than a second.
slowly=(strace -f -qq -o /dev/null -e trace=pwritev2
        -e inject=pwritev2:delay_enter=1200000:when=9)
on_terminal "${slowly[@]}" "${create[@]}" slow.qcow2 create=64M preallocation=full --run : |
  tee out
grep -Eq "create: +[0-9]+ %, [0-9]+ MiB written" out
grep -q '\\r\\x1b\[K.$' out
on_terminal "${create[@]}" quick.qcow2 create=1M --run : | tee out
[ "$(cat out)" = "b''" ]
"${slowly[@]}" "${create[@]}" silent.qcow2 create=64M preallocation=full --run : > out 2>&1
[ ! -s out ]
