#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If the target of a mirror fails as the last part is copied, while clients wait for it,
# on-target-error says what happens, as before: the job ends; or it goes on by itself; or it
# stops, clients write, and job-resume ends it well.  The old image stays whole.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/a.qcow2" 16M
start_target
start_nbdkit control="$sockdir/qmp" "$tmp/a.qcow2"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" <<'PY'
import os
import sys
from qmp import Client, connect

sockdir, tmp = sys.argv[1:]
c = Client(sockdir + "/qmp")
h = connect(sockdir + "/main.sock")
full = tmp + "/full"

def until(event, **data):
    return c.until_event(event, **data)[-1]["data"]

def fail_at_last(on_error, **more):
    """A client writes when all is copied, and the target has no space for that."""
    c.get("blockdev-mirror", job_id=on_error, device="disk", target="t", sync="full",
          on_target_error=on_error, **more)
    until("BLOCK_JOB_READY")
    h.pwrite(b"\5" * 65536, 0)
    open(tmp + "/hold-flush", "w").close()
    c.get("block-job-cancel", device=on_error)
    open(tmp + "/holds").read()
    if more:                            # that was the one before it is pending
        open(tmp + "/go-on", "w").close()
        until("BLOCK_JOB_PENDING")
        open(tmp + "/hold-flush", "w").close()
        h.pwrite(b"\6" * 65536, 0)
        c.get("job-finalize", id=on_error)
        open(tmp + "/holds").read()
    h.pwrite(b"\7" * 65536, 0)
    open(full, "w").close()
    open(tmp + "/go-on", "w").close()
    return c.until(lambda e: e["event"] in ("BLOCK_JOB_ERROR", "BLOCK_JOB_COMPLETED")
                   )[-1]["data"]

def ends_well(id):
    assert "error" not in until("BLOCK_JOB_COMPLETED", device=id)
    until("JOB_STATUS_CHANGE", id=id, status="null")
    with open(tmp + "/copy.raw", "rb") as f:
        assert f.read() == h.pread(16 << 20, 0)

c.get("blockdev-add", driver="raw", node_name="t",
      file={"driver": "nbd", "server": {"type": "unix", "path": sockdir + "/target"}})
for more in {}, {"auto_finalize": False}:
    assert fail_at_last("report", **more) == \
        {"device": "report", "operation": "write", "action": "report"}
    assert "No space left" in until("BLOCK_JOB_COMPLETED", device="report")["error"]
    until("JOB_STATUS_CHANGE", id="report", status="null")
    os.unlink(full)

    for on_error in "stop", "enospc":
        assert fail_at_last(on_error, **more)["action"] == "stop"
        h.pwrite(b"\x08" * 65536, 1 << 20)
        for n in range(2):
            (job,) = c.get("query-block-jobs")
            assert job["paused"] and not job["busy"] and job["io-status"] == "nospace", job
            if n == 0:
                c.get("job-resume", id=on_error)        # in vain
                until("BLOCK_JOB_ERROR", device=on_error)
        os.unlink(full)
        open(tmp + "/hold-flush", "w").close()
        c.get("job-resume", id=on_error)
        c.refuses("not paused", "job-resume", id=on_error)
        open(tmp + "/holds").read()
        open(tmp + "/go-on", "w").close()
        ends_well(on_error)

    fail_at_last("stop", **more)
    c.get("job-cancel", id="stop")
    until("BLOCK_JOB_CANCELLED", device="stop")
    until("JOB_STATUS_CHANGE", id="stop", status="null")
    os.unlink(full)

    assert fail_at_last("ignore", **more)["action"] == "ignore"
    h.pwrite(b"\x09" * 65536, 2 << 20)
    os.unlink(full)
    ends_well("ignore")
PY
stop_nbdkit
check_clean "$tmp/a.qcow2"
qemu-io -r -f qcow2 -c 'read -P 7 0 64K' -c 'read -P 9 2M 64K' "$tmp/a.qcow2"
