#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A check, a repair that has not begun to write, and a resize with preallocation end when the
# server is told to end, say so, and leave the image as it was.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

PLUGIN=$(realpath "$PLUGIN")
cd "$tmp"
mkfifo told

# stop WHAT PERCENT MESSAGE ARGUMENT...: as soon as it has told that this much is done.
stop ()
{
  local status=0 line fd

  exec {fd}<> told
  NBDKIT_QCOW2_PROGRESS=$fd "$NBDKIT" -U - "$PLUGIN" "${@:4}" --run true 2> err &
  helper_pids+=($!)
  until [[ "${line:-}" =~ ^"$1 "([0-9]+)/100$ && "${BASH_REMATCH[1]}" -ge "$2" ]]; do
    read -r -u "$fd" line
  done
  kill -TERM $!
  wait $! || status=$?
  exec {fd}<&-
  cat err
  [ "$status" = 1 ]
  grep "$3" err
}

# The same bytes, and no space more.
qemu-img create -q -f qcow2 disk.qcow2 64M
qemu-io -f qcow2 -c 'write -q -P 1 0 10M' disk.qcow2
cp disk.qcow2 before.qcow2
stop resize 1 'the resize was stopped; nothing was changed' disk.qcow2 resize=4G \
  preallocation=full
cmp disk.qcow2 before.qcow2

# Many small reads of a slow server.  No refcounts are left, so a repair would write.
qemu-img create -q -f qcow2 -o cluster_size=512 disk.qcow2 10M
qemu-io -f qcow2 -c 'write -q -P 1 0 10M' disk.qcow2
header_patch disk.qcow2 48 Q 0 56 I 0
cp disk.qcow2 before.qcow2
"$NBDKIT" -f -U "$sockdir/slow.sock" -P slow.pid --filter=noparallel --filter=delay \
  file disk.qcow2 delay-read=10ms &
helper_pids+=($!)
until [ -s slow.pid ]; do sleep 0.02; done
slow="nbd+unix:///?socket=$sockdir/slow.sock"
slow=("$slow" allow-uri="$slow" lock=false)
for how in quick full repair; do
  stop check 1 'the check was stopped' "${slow[@]}" check=$how
  cmp disk.qcow2 before.qcow2
done
# (The second half is the repair, the third quarter its count of references.)
stop check 55 'the repair was stopped; nothing was changed' "${slow[@]}" check=repair
cmp disk.qcow2 before.qcow2
