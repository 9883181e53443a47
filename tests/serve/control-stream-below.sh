#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# block-stream of an image below the top one while clients write: answers, errors and events
# are those of qemu-storage-daemon, and so are the files afterwards.  The disk shows what was
# written at any time; a job that is cancelled, or cut off by kill -9, is started again; once
# BLOCK_JOB_COMPLETED was told, kill -9 loses nothing, with the files of the layers that have
# gone removed.  Another disk over the same image shows the same.  An image that another
# program uses is refused, by name.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
. "$srcdir/lib/livechain.sh"

for d in ours theirs; do
  make_chain $d 5
  qemu-io -f qcow2 -c 'write -P 8 6M 64k' "$tmp/$d/b3.qcow2"
done

# --- as qemu-storage-daemon ---

serve_chains 5

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" <<'PY'
import sys
from qmp import Both

servers = Both(*sys.argv[1:])

def both(**arguments):
    servers.ask("block-stream", **arguments)

def until(status):
    servers.until_status(status)
    servers.get("query-jobs")

both(device="node9", job_id="j")
both(device="node1", job_id="j", base="DIR/nofile")
both(device="node1", job_id="j", base="DIR/b3.qcow2")
both(device="node1", job_id="j", base="DIR/b4.qcow2")
both(device="node1", job_id="j", base_node="node1")
both(device="node1", job_id="j", base_node="disk")
both(device="node1", job_id="j", base_node="nope")
both(device="node1", job_id="j", bottom="disk")
both(device="node1", job_id="j", bottom="nope")
both(device="node1", job_id="j", base_node="node3", bottom="node2")
both(device="node1", job_id="j", backing_file="x")
both(device="node1", job_id="j", on_error="maybe")

both(device="node1", job_id="j", base_node="node3", auto_dismiss=False,
     auto_finalize=False)
until("pending")
servers.get("job-finalize", id="j")
until("concluded")
servers.get("job-dismiss", id="j")
until("null")
both(device="node3", job_id="j", backing_file="x")
both(device="node3", job_id="j")
until("null")
PY
stop_nbdkit
end_storage_daemon
for i in 1 3 4; do
  check_clean "$tmp/ours/b$i.qcow2"
  for d in ours theirs; do
    qemu-img info -U -f qcow2 --output=json "$tmp/$d/b$i.qcow2" |
      { grep '"backing-filename"' || :; } | sed "s|$tmp/$d|DIR|" > "$tmp/$d-name"
  done
  cmp "$tmp/ours-name" "$tmp/theirs-name"
  qemu-img compare -q -f qcow2 -F qcow2 "$tmp/ours/b$i.qcow2" "$tmp/theirs/b$i.qcow2"
done
rm "$tmp/ours/b0.qcow2" "$tmp/ours/b2.qcow2"
qemu-img compare -q -f qcow2 -F qcow2 "$tmp/ours/b4.qcow2" "$tmp/theirs/b4.qcow2"

# --- with clients ---

make_chain live 5
d=$tmp/live
qemu-img create -q -f qcow2 -b "$d/b3.qcow2" -F qcow2 "$d/other.qcow2"
qemu-io -f qcow2 -c 'write -P 7 1M 1M' "$d/other.qcow2"
qemu-img convert -f qcow2 -O raw "$d/b4.qcow2" "$d/model.raw"
qemu-img convert -f qcow2 -O raw "$d/other.qcow2" "$d/other.raw"
cat > "$tmp/live.py" <<'PY'
import os
import signal
import sys
from qmp import Client, Writers

c, uri, d = Client(sys.argv[1]), *sys.argv[2:4]

def files():
    return [os.path.basename(n["file"]) for n in c.get("query-named-block-nodes")]

def start(**arguments):
    c.get("block-stream", device="node1", job_id="j", **arguments)

def ended():
    done = [e["data"] for e in c.until_status("null") if e["event"] == "BLOCK_JOB_COMPLETED"]
    assert len(done) == 1 and "error" not in done[0], done
PY

start_nbdkit control="$sockdir/qmp" "$d/b4.qcow2"
hold_in_qemu_io -r -f qcow2 "$d/b3.qcow2"
PYTHONPATH="$srcdir/lib:$tmp" "$python" - "$sockdir/qmp" "$uri" "$d" "$qemu_io" <<'PY'
from live import *
reader = sys.argv[4]
writers = Writers(uri, d + "/model.raw", 2).start()
c.refuses("PID " + reader, "block-stream", device="node1", job_id="j")
os.kill(int(reader), signal.SIGKILL)
while c.ask("block-stream", device="node1", job_id="j", base_node="node3",
            speed=1).get("error"):
    pass                        # until it has gone
c.until_status("running")
c.refuses("is busy", "block-commit", device="disk", job_id="k", top_node="node1")
while c.get("query-jobs")[0]["current-progress"] < 4 << 20:
    pass
c.get("job-pause", id="j")
c.until_status("paused")
c.get("job-resume", id="j")
c.get("job-cancel", id="j")
assert any(e["event"] == "BLOCK_JOB_CANCELLED" for e in c.until_status("null"))
assert files() == ["b%d.qcow2" % i for i in (4, 3, 2, 1, 0)], files()
start(base_node="node3")
ended()
assert files() == ["b%d.qcow2" % i for i in (4, 3, 1, 0)], files()
os.unlink(d + "/b2.qcow2")
start(speed=1)
while c.get("query-jobs")[0]["current-progress"] <= 2 << 20:
    pass
writers.end()
PY
kill9_nbdkit
qemu-img compare -q -f qcow2 -F raw "$d/other.qcow2" "$d/other.raw"

start_nbdkit control="$sockdir/qmp" "$d/b4.qcow2"
PYTHONPATH="$srcdir/lib:$tmp" "$python" - "$sockdir/qmp" "$uri" "$d" <<'PY'
from live import *
writers = Writers(uri, d + "/model.raw", 2).start()
start()
ended()
assert files() == ["b4.qcow2", "b3.qcow2"], files()
for i in 0, 1:
    os.unlink(d + "/b%d.qcow2" % i)
# What it wrote once can be written again.
c.get("blockdev-snapshot-sync", device="disk", snapshot_file=d + "/b5.qcow2")
c.get("block-commit", device="disk", job_id="j", top_node="node0", base_node="node1")
ended()
writers.end()
PY
kill9_nbdkit
check_clean "$d/b3.qcow2"
qemu-img compare -q -f qcow2 -F raw "$d/b5.qcow2" "$d/model.raw"
