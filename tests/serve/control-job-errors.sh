#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What happens to a job when something cannot be read (EIO) or there is no space (ENOSPC) is
# what qemu-storage-daemon does: for each on-error= the same events, states and errors.  A
# job that was stopped goes on when the fault has gone, one that has failed can be started
# again, and a disk whose job failed goes on as before.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version
requires nbdkit --filter=error null --version

d="$tmp/images"
mkdir "$d"

# The base and the image are behind servers that fail while there is a file.
serve_failing ()
{
  "$NBDKIT" --exit-with-parent -f -U "$sockdir/$1" --filter=error file "$d/$1" \
    error-file="$d/fail-$1" "${@:2}" </dev/null &
  helper_pids+=($!)
  await -p $! listens "$sockdir/$1"
}
uri_of () { echo "nbd+unix:///?socket=$sockdir/$1"; }

for i in ours theirs; do
  truncate -s 8M "$d/$i.base"
  qemu-io -f raw -c 'write -P 5 0 6M' "$d/$i.base"
  qemu-img create -q -f qcow2 -u -b "$(uri_of $i.base)" -F raw "$d/$i.top" 8M
  truncate -s 32M "$d/$i.top"
  serve_failing $i.base error-pread=EIO error-pread-rate=100%
  serve_failing $i.top error-pwrite=ENOSPC error-pwrite-rate=100% \
    error-zero=ENOSPC error-zero-rate=100%
done

start_nbdkit control="$sockdir/o.qmp" "$(uri_of ours.top)" lock=false \
  allow-uri="$(uri_of ours.base)"
start_storage_daemon \
  --blockdev driver=nbd,server.type=unix,server.path="$sockdir/theirs.base",node-name=b \
  --blockdev driver=raw,file=b,node-name=base \
  --blockdev driver=nbd,server.type=unix,server.path="$sockdir/theirs.top",node-name=f \
  --blockdev driver=qcow2,file=f,node-name=disk,backing=base

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$d" <<'PY'
import os
import sys
from qmp import Both, connect

sockdir, d = sys.argv[1:]
# (How far a job is, and whether it waits for I/O, may differ.)
servers = Both(sockdir, d, lambda key, of: key in ("offset", "current-progress", "busy"))
both, until = servers.ask, servers.until_status
h = connect(sockdir + "/main.sock")

def fault(what, on):
    for who in "ours", "theirs":
        path = "%s/fail-%s.%s" % (d, who, what)
        if on:
            open(path, "w").close()
        else:
            os.unlink(path)

def stream(**more):
    both("block-stream", device="disk", job_id="j", auto_dismiss=False, **more)

def query():
    both("query-jobs")
    both("query-block-jobs")

for what in "base", "top":
    for on_error in "report", "enospc", "auto", "stop":
        fault(what, True)
        stream(on_error=on_error)
        stops = on_error == "stop" or (what == "top" and on_error != "report")
        events = until("paused" if stops else "concluded")
        assert any(e["event"] == "BLOCK_JOB_ERROR" for e in events), events
        query()
        if stops:
            both("job-resume", id="j")          # in vain
            until("running")
            until("paused")
            both("block-job-cancel", device="j")
            both("job-cancel", id="j")
            until("concluded")
            query()
        both("job-dismiss", id="j")
        until("null")
        fault(what, False)
        assert h.pread(512, 0) == b"\5" * 512

# (QEMU tells of other pieces than we do here.)
fault("base", True)
for c in servers.clients:
    c.get("block-stream", device="disk", job_id="i", on_error="ignore", auto_dismiss=False)
    assert {e["data"]["action"] for e in c.until_status("concluded")
            if e["event"] == "BLOCK_JOB_ERROR"} == {"ignore"}
query()
both("job-dismiss", id="i")
until("null")

stream(on_error="stop")
until("paused")
query()
fault("base", False)
both("job-resume", id="j")
until("concluded")
query()
both("job-dismiss", id="j")
until("null")
h.pwrite(b"\7" * 512, 512)
assert h.pread(1024, 0) == b"\5" * 512 + b"\7" * 512
h.shutdown()
for c in servers.clients:
    c.ask("quit")
PY
await_end "$nbdkit_pid"
end_storage_daemon
qemu-io -r -f qcow2 -c 'read -P 5 1M 5M' -c 'read -P 0 6M 2M' "$d/ours.top"
qemu-img check -f qcow2 "$d/ours.top"
[ -z "$(qemu-img info -f qcow2 "$d/ours.top" | grep '^backing')" ]
