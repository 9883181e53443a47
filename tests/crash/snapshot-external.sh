#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A server that is killed while it takes an external snapshot, at any of its system calls
# that change a file, leaves an image that can be served and written again by its old name.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires strace -f -e trace=pwrite64 -e inject=pwrite64:signal=KILL:when=1 true

base="$tmp/base.qcow2" new="$tmp/new.qcow2"
make_image "$tmp/good.qcow2" 1M
io "$tmp/good.qcow2" 'write -P 1 0 1M'
named=0                         # killed when the image named the new one

for call in pwrite64 fdatasync linkat; do
  for ((n = 1; ; n++)); do
    rm -f "$new"
    cp "$tmp/good.qcow2" "$base"
    NBDKIT_WRAPPER="strace -f -qq -o /dev/null -e trace=$call \
      -e inject=$call:signal=KILL:when=$n" start_nbdkit control="$sockdir/qmp" "$base"
    status=0
    PYTHONPATH="$srcdir/lib" "$python" -c 'import sys
from qmp import Client
Client(sys.argv[1]).get("blockdev-snapshot-sync", device="disk", snapshot_file=sys.argv[2])' \
      "$sockdir/qmp" "$new" || status=$?
    kill_traced
    check_clean "$base"
    if [ -e "$new" ]; then check_clean "$new"; fi
    if [ "$status" -ne 0 ] && grep -q new.qcow2 "$base"; then named=$((named + 1)); fi
    start_nbdkit "$base"
    nbdsh_run -c 'assert h.pread(1 << 20, 0) == b"\1" * (1 << 20); h.pwrite(b"\1", 0)'
    stop_nbdkit
    if [ "$status" -eq 0 ]; then break; fi
  done
done
[ "$named" -gt 0 ]
