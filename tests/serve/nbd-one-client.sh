#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A server that admits one client at a time is enough to check an image, to change it in
# every way, and to serve it.  One that leaves a second client without an answer delays
# nothing for long.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_filter limit

random_file "$tmp/base.raw" 300000
truncate -s 1M "$tmp/base.raw"
make_image "$tmp/far" 1M backing_file="$tmp/base.raw",backing_fmt=raw
truncate -s 8M "$tmp/far"
PLUGIN=file start_nbdkit_as far --filter=limit -- "$tmp/far" limit=1
far_uri="$uri"

# served PARAMETER...: starts, serves and ends.
served ()
{
  start_nbdkit "$far_uri" lock=false "$@"
  nbdsh_run -c 'h.pwrite(b"x" * 512, 4096); h.flush()'
  stop_nbdkit
}

header_patch "$tmp/far" $((2 * 65536)) H 7      # the refcount of cluster 0
served check=repair check-report="$tmp/report"
grep 'check=repair: repaired' "$tmp/main.log"
served check=quick
served check=full
served check=full check-report="$tmp/report"
served check=repair
served snapshot-create=monday bitmap-add=changes
served snapshot-delete=monday resize=2M check=quick
served flatten=true
check_clean "$tmp/far"

# One that leaves a second client without an answer: at the end of the export, who asks
# whether it has grown does not hold up requests for as long as connect-timeout= says.
command -v qemu-nbd || skip "qemu-nbd is missing"
make_image "$tmp/full" 64M
truncate -s 12M "$tmp/full"
qemu-nbd -f raw --persistent -k "$sockdir/full.sock" "$tmp/full" &
qemu=$!
helper_pids+=("$qemu")
await -p "$qemu" listens "$sockdir/full.sock"
start_nbdkit "nbd+unix:///?socket=$sockdir/full.sock" lock=false connect-timeout=3600
nbdsh_run -c - <<'PY'
import errno
refused = 0
for at in range(0, 16 << 20, 65536):
    try:
        h.pwrite(b"x" * 65536, at)
    except nbd.Error as e:
        assert e.errnum == errno.ENOSPC, e
        refused += 1
assert refused > 0
PY
stop_nbdkit
kill "$qemu"
wait "$qemu" || :
check_clean "$tmp/full"
