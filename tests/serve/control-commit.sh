#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# block-commit merges layers below the active one while clients write: answers, errors and
# events are those of qemu-storage-daemon.  The disk shows what was written at any time, and
# once BLOCK_JOB_COMPLETED was told, kill -9 loses nothing, with the files of the layers that
# have gone removed.  A job that is cancelled changes nothing that clients see.  A base that
# another program uses is refused, by name.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
. "$srcdir/lib/livechain.sh"

make_chain ours 4
make_chain theirs 4

# --- as qemu-storage-daemon ---

serve_chains 4

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" <<'PY'
import sys
from qmp import Both

servers = Both(*sys.argv[1:])

def both(**arguments):
    servers.ask("block-commit", **arguments)

def until(status):
    servers.until_status(status)
    servers.get("query-jobs")

def chain(c):
    return [[n["node-name"], n.get("backing_file"), n["backing_file_depth"],
             n["image"].get("backing-filename")] for n in c.get("query-named-block-nodes")
            if n["drv"] == "qcow2" and n["node-name"] in ("node2", "node3")]

both()
both(device="nope")
both(device="disk", top="/nofile")
both(device="disk", top_node="nope")
both(device="disk", top_node="node1", top="DIR/b2.qcow2")
both(device="disk", top_node="node1", base_node="nope")
both(device="disk", top_node="node1", base="DIR/nofile")
both(device="disk", top_node="node1", base_node="node3", base="DIR/b0.qcow2")
both(device="disk", top_node="node1", base_node="node1")
both(device="disk", top_node="node1", base="DIR/b2.qcow2")
both(device="disk", top_node="node2", base_node="node1")
both(device="disk", top_node="node3")
both(device="disk", backing_file="x")
both(device="disk", top_node="node1", on_error="maybe")
both(device="disk", top_node="node1", job_id="-x")
both(device="disk", top_node="node1", job_id="j", nonsense=1)
both(device="disk", top_node="node1", job_id="j", speed="fast")
both(device="node1", top_node="node2", job_id="j")

both(device="disk", top="DIR/b2.qcow2", base_node="node2", job_id="j", auto_dismiss=False,
     auto_finalize=False)
until("pending")
servers.get("job-finalize", id="j")
until("concluded")
servers.get("job-dismiss", id="j")
until("null")
servers.compare("chain", chain)
both(device="disk", top_node="node2", base="DIR/b0.qcow2", job_id="j", backing_file="b0.qcow2")
until("null")
PY
stop_nbdkit
end_storage_daemon
for i in 0 1 2 3; do
  check_clean "$tmp/ours/b$i.qcow2"
  qemu-img info -U -f qcow2 --output=json "$tmp/ours/b$i.qcow2" |
    grep '"backing-filename"' | sed "s|$tmp/ours|DIR|" > "$tmp/our-name" || true
  qemu-img info -U -f qcow2 --output=json "$tmp/theirs/b$i.qcow2" |
    grep '"backing-filename"' | sed "s|$tmp/theirs|DIR|" > "$tmp/their-name" || true
  # (There, the image that has left the chain goes on as a node over the next one.)
  [ $i = 2 ] || cmp "$tmp/our-name" "$tmp/their-name"
done
qemu-img compare -q -f qcow2 -F qcow2 "$tmp/ours/b0.qcow2" "$tmp/theirs/b0.qcow2"

# --- with clients ---

make_chain live 4
d=$tmp/live
qemu-img convert -f qcow2 -O raw "$d/b3.qcow2" "$d/model.raw"
start_nbdkit control="$sockdir/qmp" "$d/b3.qcow2"
hold_in_qemu_io -r -f qcow2 "$d/b0.qcow2"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$uri" "$d" "$qemu_io" <<'PY'
import os
import signal
import subprocess
import sys
from qmp import Client, Writers

c, uri, d, reader = Client(sys.argv[1]), *sys.argv[2:]

def files():
    return [os.path.basename(n["file"]) for n in c.get("query-named-block-nodes")]

# If it is refused, others can still read the image on top.
c.refuses("PID " + reader, "block-commit", device="disk", job_id="j", top_node="node1")
subprocess.run(["qemu-img", "info", d + "/b3.qcow2"], check=True)
writers = Writers(uri, d + "/model.raw", 2).start()
c.refuses("lock", "block-commit", device="disk", job_id="j", top_node="node1")
c.refuses("PID " + reader, "block-commit", device="disk", job_id="j", top_node="node1")
os.kill(int(reader), signal.SIGKILL)
while c.ask("block-commit", device="disk", job_id="j", top_node="node2",
            speed=1).get("error"):
    pass                        # until it has gone
c.until_status("running")
c.refuses("is busy", "block-commit", device="disk", job_id="k", top_node="node1",
          base_node="node2")
c.get("job-cancel", id="j")
assert any(e["event"] == "BLOCK_JOB_CANCELLED" for e in c.until_status("null"))
assert files() == ["b3.qcow2", "b2.qcow2", "b1.qcow2", "b0.qcow2"], files()

# The header of a layer below the top changes; then that of the top.
for top, gone in ("node2", "b1.qcow2"), ("node1", "b2.qcow2"):
    c.get("block-commit", device="disk", job_id="j", top_node=top)
    done = [e["data"] for e in c.until_status("null") if e["event"] == "BLOCK_JOB_COMPLETED"]
    assert len(done) == 1 and "error" not in done[0], done
    assert gone not in files(), files()
    os.unlink(d + "/" + gone)
assert files() == ["b3.qcow2", "b0.qcow2"], files()
writers.end()
PY
kill9_nbdkit
check_clean "$d/b0.qcow2"
qemu-img compare -q -f qcow2 -F raw "$d/b3.qcow2" "$d/model.raw"
