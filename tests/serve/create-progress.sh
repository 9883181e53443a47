#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Creating an image that takes longer than a second shows its progress on a terminal, and
# leaves a clean line; creating it faster, or without a terminal, shows nothing.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
cd "$tmp"

# on_terminal PARAMETER...: what appears on it.
on_terminal ()
{
  "$python" - "$NBDKIT" -U - "$PLUGIN" "$@" --run : <<'PY'
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

# The seconds are those of finding out how fast the machine is.
slow=(encrypt=luks iter-time=2000 passphrase=x preallocation=full)
on_terminal slow.qcow2 create=64M "${slow[@]}" | tee out
grep -Eq "create: +[0-9]+ %, [0-9]+ MiB written" out
grep -q '\\r\\x1b\[K.$' out
on_terminal quick.qcow2 create=1M | tee out
[ "$(cat out)" = "b''" ]
"$NBDKIT" -U - "$PLUGIN" silent.qcow2 create=64M "${slow[@]}" --run : > out 2>&1
[ ! -s out ]
