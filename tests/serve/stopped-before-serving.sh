#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A check, a repair that has not begun to write, and a resize with preallocation end when the
# server is told to end, say so, and leave the image as it was.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

PLUGIN=$(realpath "$PLUGIN")
cd "$tmp"

# stop WHAT PERCENT MESSAGE ARGUMENT...: as soon as a terminal shows that this much is done.
stop ()
{
  "$python" - "$1" "$2" "$NBDKIT" -U - "$PLUGIN" "${@:4}" --run true > said <<'PY'
import os, pty, re, subprocess, sys
what, percent, *command = sys.argv[1:]
terminal, its = pty.openpty()
p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=its)
os.close(its)
text, ended = b"", False
while True:
    try:
        text += os.read(terminal, 4096)
    except OSError:             # nobody has it open any more
        break
    shown = re.findall(rb"%s: +(\d+) %%" % what.encode(), text)
    if not ended and shown and int(shown[-1]) >= int(percent):
        ended = True
        p.terminate()
sys.stdout.buffer.write(text)
assert p.wait() == 1 and ended, (p.returncode, text)
PY
  cat -v said
  grep "$3" said
}

# serve_slowly DELAY...: $slow has the parameters for disk.qcow2 behind a server.
serve_slowly ()
{
  rm -f slow.pid
  "$NBDKIT" -f -U "$sockdir/slow.sock" -P slow.pid --filter=noparallel --filter=delay \
    file disk.qcow2 "$@" &
  server=$!
  helper_pids+=($server)
  until [ -s slow.pid ]; do sleep 0.02; done
  slow="nbd+unix:///?socket=$sockdir/slow.sock"
  slow=("$slow" allow-uri="$slow" lock=false)
}

# (A table of small clusters is soon full; nothing is told before.)
qemu-img create -q -f qcow2 -o cluster_size=4k disk.qcow2 64M
qemu-io -f qcow2 -c 'write -q -P 1 0 10M' disk.qcow2
truncate -s 1G disk.qcow2
cp disk.qcow2 before.qcow2
serve_slowly delay-write=100ms delay-zero=100ms
stop resize 1 'the resize was stopped; nothing was changed' "${slow[@]}" resize=800M \
  preallocation=full
cmp disk.qcow2 before.qcow2
kill -TERM $server
await_end $server
rm "$sockdir/slow.sock"

# Many small reads of a slow server.  No refcounts are left, so a repair would write.
qemu-img create -q -f qcow2 -o cluster_size=512 disk.qcow2 10M
qemu-io -f qcow2 -c 'write -q -P 1 0 10M' disk.qcow2
header_patch disk.qcow2 48 Q 0 56 I 0
cp disk.qcow2 before.qcow2
# (check=quick reads least.)
for how in quick full repair; do
  case $how in
    quick) serve_slowly delay-read=100ms ;;
    full)
      kill -TERM $server
      await_end $server
      rm "$sockdir/slow.sock"
      serve_slowly delay-read=10ms ;;
  esac
  stop check 1 'the check was stopped' "${slow[@]}" check=$how
  cmp disk.qcow2 before.qcow2
done
# (The second half is the repair, the third quarter its count of references.)
stop check 55 'the repair was stopped; nothing was changed' "${slow[@]}" check=repair
cmp disk.qcow2 before.qcow2
