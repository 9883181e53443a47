#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An error of the storage counts, and is logged, even if it looks like that of a request whose
# client has gone: ESHUTDOWN (of a CephFS that shuts the host out), which a client would take
# for the end of the server, so it gets EIO; and ENOSPC of a read, which does not wait for
# space.  Nor is an image fine that cannot be opened for such an error.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires strace -f -P / -e trace=pread64,openat,openat2 -e inject=pread64:error=ESHUTDOWN true

# start ERROR CALL FILE PARAMETER...: a server whose calls for the file fail.
start ()
{
  local wrapper="strace -f -qq -o /dev/null -P $3 -e trace=$2 -e inject=$2:error=$1"
  shift 3
  rm -f "$tmp/log"
  NBDKIT_WRAPPER="$wrapper" start_nbdkit log="$tmp/log" "$@"
}

truncate -s 1M "$tmp/base.raw"
make_image "$tmp/a.qcow2" 1M backing_file=base.raw,backing_fmt=raw
printf x | dd of="$tmp/base.raw" conv=notrunc
for errors in 'ESHUTDOWN EIO' 'ENOSPC ENOSPC'; do
  read -r error wanted <<< "$errors"
  start "$error" pread64 "$tmp/base.raw" file="$tmp/a.qcow2" on-enospc=wait
  "$python" - "$uri" "$wanted" <<'PY'
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
try:
    h.pread(512, 0)
    sys.exit("it was read")
except nbd.Error as e:
    assert e.errno == sys.argv[2], e
PY
  await grep -q disconnect "$tmp/log"
  grep -E 'disconnect .* errors=1 ' "$tmp/log"
  grep request-failed "$tmp/log"
  kill_traced
done

mkdir "$tmp/d"
make_image "$tmp/d/a" 1M
start ESHUTDOWN openat,openat2 a dir="$tmp/d" stats="$tmp/stats"
if nbdinfo --size "nbd+unix:///a?socket=$sock"; then fail "it was opened"; fi
await grep -q '"refused"' "$tmp/stats"
kill_traced
