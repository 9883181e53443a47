#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# While the target of a mirror hangs, commands are answered and clients write, also after
# job-finalize: what was written until then is copied first, by the job, which can be
# cancelled meanwhile.  When the target works again, the job ends.  If it hangs at any moment
# after job-complete, also while clients wait for the rest, commands are answered.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version
requires nbdkit --filter=delay null --version

make_image "$tmp/a.qcow2" 16M
truncate -s 16M "$tmp/copy.raw"
qemu-nbd -t -f raw -k "$sockdir/target" -x "" "$tmp/copy.raw" &
target="$!"
helper_pids+=("$target")
await -p "$target" listens "$sockdir/target"
nbdkit -f -U "$sockdir/slow" --filter=delay memory 16M delay-write=3ms &
slow="$!"
helper_pids+=("$slow")
await -p "$slow" listens "$sockdir/slow"
start_nbdkit control="$sockdir/qmp" "$tmp/a.qcow2"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$uri" "$target" "$slow" <<'PY'
import os
import random
import signal
import sys
import threading
import nbd
from qmp import Client

sockdir, uri, target, slow = *sys.argv[1:3], *map(int, sys.argv[3:])
c = Client(sockdir + "/qmp")
h = nbd.NBD()
h.connect_uri(uri)

def until(event, **data):
    return c.until_event(event, **data)[-1]["data"]

def finalize_hung(id):
    c.get("blockdev-mirror", job_id=id, device="disk", target="t", sync="full",
          auto_finalize=False)
    until("BLOCK_JOB_READY", device=id)
    c.get("block-job-cancel", device=id)
    until("BLOCK_JOB_PENDING", id=id)
    os.kill(target, signal.SIGSTOP)
    h.pwrite(id.encode() * (1 << 20), 0)
    c.get("job-finalize", id=id)
    c.refuses("being finalized already", "job-finalize", id=id)
    assert c.get("query-jobs")[0]["status"] == "pending"
    h.pwrite(id.encode() * (1 << 20), 8 << 20)

c.get("blockdev-add", driver="raw", node_name="t",
      file={"driver": "nbd", "server": {"type": "unix", "path": sockdir + "/target"}})
finalize_hung("j")
os.kill(target, signal.SIGCONT)
assert "error" not in until("BLOCK_JOB_COMPLETED", device="j")
until("JOB_STATUS_CHANGE", id="j", status="null")

finalize_hung("k")
c.get("job-cancel", id="k")
c.get("query-jobs")
os.kill(target, signal.SIGCONT)
until("BLOCK_JOB_CANCELLED", device="k")
until("JOB_STATUS_CHANGE", id="k", status="null")
finalize_hung("l")
os.kill(target, signal.SIGCONT)
assert "error" not in until("BLOCK_JOB_COMPLETED", device="l")

# A client writes all the time, and the target is slow: clients wait for the rest.
class Writer(threading.Thread):
    daemon, ends = True, False

    def run(self):
        own = nbd.NBD()
        own.connect_uri(uri)
        while not self.ends:
            own.pwrite(os.urandom(65536), random.randrange(32) * 65536)

c.get("blockdev-add", driver="raw", node_name="s",
      file={"driver": "nbd", "server": {"type": "unix", "path": sockdir + "/slow"}})
w = Writer()
w.start()
for i in range(20):
    id = "m%d" % i
    c.get("blockdev-mirror", job_id=id, device="disk", target="s", sync="none")
    until("BLOCK_JOB_READY", device=id)
    c.get("block-job-cancel", device=id)
    for n in range(random.randrange(500)):
        h.pread(512, 0)
    os.kill(slow, signal.SIGSTOP)
    try:
        for n in range(50):
            c.get("query-jobs")
    finally:
        os.kill(slow, signal.SIGCONT)
    assert "error" not in until("BLOCK_JOB_COMPLETED", device=id)
    until("JOB_STATUS_CHANGE", id=id, status="null")
w.ends = True
w.join()
finalize_hung("n")
os.kill(target, signal.SIGCONT)
assert "error" not in until("BLOCK_JOB_COMPLETED", device="n")
with open(sockdir + "/shown", "wb") as f:
    f.write(h.pread(16 << 20, 0))
PY
stop_nbdkit
cmp "$sockdir/shown" "$tmp/copy.raw"
check_clean "$tmp/a.qcow2"
