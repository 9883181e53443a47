#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If the target of a mirror hangs while clients wait for its last part, they wait no longer
# when the job is cancelled, or when the server is told to end.  Then requests are answered
# and the image comes to rest, although the server has to wait for the target.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
start_target

for how in job-cancel quit TERM; do
  make_image "$tmp/$how.qcow2" 16M
  start_nbdkit control="$sockdir/qmp" "$tmp/$how.qcow2"
  PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" "$how" "$nbdkit_pid" <<'PY'
import os
import signal
import sys
import time
from qmp import Client, connect

sockdir, tmp, how, server = *sys.argv[1:4], int(sys.argv[4])
c = Client(sockdir + "/qmp")
h = connect(sockdir + "/main.sock")

def arm(what):
    open("%s/hold-%s" % (tmp, what), "w").close()

def go_on():
    open(tmp + "/go-on", "w").close()

def await_hold():
    open(tmp + "/holds").read()

def is_at_rest():
    """The autoclear features: the mark of an image that is being changed is gone."""
    with open("%s/%s.qcow2" % (tmp, how), "rb") as f:
        f.seek(88)
        return f.read(8) == bytes(8)

c.get("blockdev-add", driver="raw", node_name="t",
      file={"driver": "nbd", "server": {"type": "unix", "path": sockdir + "/target"}})
c.get("blockdev-mirror", job_id="j", device="disk", target="t", sync="full",
      auto_finalize=False)
c.until_event("BLOCK_JOB_READY")
c.get("block-job-cancel", device="j")
c.until_event("BLOCK_JOB_PENDING")
h.pwrite(b"\5" * 65536, 0)
arm("flush")
c.get("job-finalize", id="j")
await_hold()
h.pwrite(b"\6" * 65536, 0)              # what is left for the end
arm("write")
go_on()
await_hold()
last = h.aio_pwrite(b"\7" * 65536, 0)
def nr_writes():
    return c.get("x-query-statistics")["images"][0]["exports"][0]["write"]["running"]

while nr_writes() == 0:
    pass
assert not is_at_rest()
if how == "TERM":
    os.kill(server, signal.SIGTERM)
else:
    c.get(how, **{"id": "j"} if how == "job-cancel" else {})
while not h.aio_command_completed(last):
    h.poll(-1)
if how == "job-cancel":
    h.shutdown()
while not is_at_rest():
    time.sleep(0.02)
c.socket.setblocking(False)
try:
    assert b"BLOCK_JOB_CANCELLED" not in c.socket.recv(65536)
except BlockingIOError:
    pass
c.socket.setblocking(True)
go_on()
c.until_event("BLOCK_JOB_CANCELLED", device="j")
if how == "job-cancel":
    c.get("quit")
PY
  await_nbdkit
  check_clean "$tmp/$how.qcow2"
  qemu-io -r -f qcow2 -c 'read -P 7 0 64K' "$tmp/$how.qcow2"
done
