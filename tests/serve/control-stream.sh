#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A chain becomes shorter while clients write (block-stream): the disk shows what they have
# written at any time, and after each job.  A job goes on from what is there already when it
# was cancelled, or the server was killed; once BLOCK_JOB_COMPLETED was told, kill -9 loses
# nothing.  Names of nodes stay with their files.  With dir= the job keeps its image open
# when the last client leaves.  Other jobs, images with snapshots that need the layers, and
# external data files are refused.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

d="$tmp/images"
mkdir "$d"
make_chain ()
{
  qemu-img create -q -f qcow2 "$d/base.qcow2" 32M
  qemu-io -f qcow2 -c 'write -P 5 0 24M' "$d/base.qcow2"
  qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$d/one.qcow2"
  qemu-io -f qcow2 -c 'write -P 6 4M 12M' -c 'write -z 20M 2M' "$d/one.qcow2"
  qemu-img create -q -f qcow2 -b one.qcow2 -F qcow2 "$d/two.qcow2"
  qemu-io -f qcow2 -c 'write -P 7 8M 1M' "$d/two.qcow2"
  qemu-img create -q -f qcow2 -b two.qcow2 -F qcow2 "$d/top.qcow2"
}
make_chain
qemu-img convert -f qcow2 -O raw "$d/top.qcow2" "$d/model.raw"

cat > "$tmp/client.py" <<'PY'
import os
import qmp
from qmp import Client

SIZE = 32 << 20

def Writers(uri, path):
    return qmp.Writers(uri, path, 3, part=2 << 20).start()    # the rest has to be copied

def pause_after(c, progress):
    """The job, which is slow, is in its midst, and stays there."""
    while c.get("query-jobs")[0]["current-progress"] < progress:
        pass
    c.get("job-pause", id="s")

def nodes(c):
    return [(n["node-name"], os.path.basename(n["file"]))
            for n in c.get("query-named-block-nodes")]

def completed(events):
    found = [e["data"] for e in events if e["event"] == "BLOCK_JOB_COMPLETED"]
    assert len(found) == 1 and "error" not in found[0], events
    return found[0]
PY

run ()
{
  PYTHONPATH="$srcdir/lib:$tmp" "$python" - "$sockdir/qmp" "$uri" "$d"
}

# A part of the chain; what a cancelled job has copied is not copied again.
start_nbdkit control="$sockdir/qmp" "$d/top.qcow2"
run <<'PY'
import sys
from client import *
c, d = Client(sys.argv[1]), sys.argv[3]
w = Writers(sys.argv[2], d + "/model.raw")
c.get("block-stream", device="disk", job_id="s", base_node="node3", speed=1 << 20)
pause_after(c, 2 << 20)
c.refuses("is busy", "block-stream", device="node0", job_id="t")
c.refuses("is busy", "blockdev-snapshot-sync", device="disk", snapshot_file="/x")
c.get("block-dirty-bitmap-add", node="disk", name="b", persistent=True)
c.get("job-cancel", id="s")
c.until_status("null")
assert len(nodes(c)) == 4
c.get("block-stream", device="disk", job_id="s", base_node="node3")
assert completed(c.until_status("null"))["offset"] == SIZE
assert nodes(c) == [("node0", "top.qcow2"), ("node3", "base.qcow2")], nodes(c)
c.get("block-dirty-bitmap-remove", node="disk", name="b")
c.get("blockdev-snapshot-sync", device="disk", snapshot_file=d + "/new.qcow2",
      snapshot_node_name="new")
assert [n for n, _ in nodes(c)] == ["new", "node0", "node3"], nodes(c)
c.get("block-stream", device="disk", job_id="s", base_node="node3")
completed(c.until_status("null"))
# The image that the server has begun with is shown, as QEMU does, without its file, too.
for there in True, False:
    assert nodes(c) == [("new", "new.qcow2"), ("node3", "base.qcow2"),
                        ("node0", "top.qcow2")], nodes(c)
    if there:
        os.rename(d + "/top.qcow2", d + "/away.qcow2")
c.get("blockdev-del", node_name="node0")
assert nodes(c) == [("new", "new.qcow2"), ("node3", "base.qcow2")], nodes(c)
os.rename(d + "/away.qcow2", d + "/top.qcow2")
w.end()
PY
stop_nbdkit
check_clean "$d/new.qcow2"
qemu-img info -f qcow2 "$d/new.qcow2" | grep -q "^backing file: $d/base.qcow2\$"
rm "$d/one.qcow2" "$d/two.qcow2" "$d/top.qcow2"
qemu-img compare -f qcow2 -F raw "$d/new.qcow2" "$d/model.raw"

# The whole chain: cut off by kill -9, it goes on; at the end kill -9 does no harm, and the
# other files are not needed.
start_nbdkit control="$sockdir/qmp" "$d/new.qcow2"
run <<'PY'
import sys
from client import *
c, d = Client(sys.argv[1]), sys.argv[3]
w = Writers(sys.argv[2], d + "/model.raw")
c.get("block-stream", device="disk", job_id="s", speed=1 << 20)
pause_after(c, 2 << 20)
w.end()
PY
kill9_nbdkit
start_nbdkit control="$sockdir/qmp" "$d/new.qcow2"
run <<'PY'
import sys
from client import *
c, d = Client(sys.argv[1]), sys.argv[3]
w = Writers(sys.argv[2], d + "/model.raw")
c.get("block-stream", device="disk", job_id="s", auto_dismiss=False)
completed(c.until_status("concluded"))
assert nodes(c) == [("node0", "new.qcow2")]
w.end()
PY
kill9_nbdkit
rm "$d/base.qcow2"
start_nbdkit "$d/new.qcow2"
nbdsh_run -c 'h.pwrite(h.pread(1, 0), 0)'
stop_nbdkit
check_clean "$d/new.qcow2"
qemu-img compare -f qcow2 -F raw "$d/new.qcow2" "$d/model.raw"
[ -z "$(qemu-img info -f qcow2 "$d/new.qcow2" | grep '^backing')" ]

# Images of a directory: the job is the only one that uses the image.  When the server is
# told to end, the job is cancelled.
make_chain
qemu-img convert -f qcow2 -O raw "$d/top.qcow2" "$d/model.raw"
start_nbdkit control="$sockdir/qmp" dir="$d"
run <<'PY'
import sys
from client import *
c = Client(sys.argv[1])
c.get("block-stream", device="top.qcow2", base_node="top.qcow2/node2", speed=1 << 16)
assert [e["data"]["id"] for e in c.until_status("running")] == ["top.qcow2"] * 2
assert [b["device"] for b in c.get("query-block")] == ["top.qcow2"]
c.refuses("is not a backing image", "block-stream", device="one.qcow2", job_id="t",
          base_node="top.qcow2/node3")
c.get("block-job-set-speed", device="top.qcow2", speed=0)
completed(c.until_status("null"))
assert c.get("query-block") == []
c.get("block-stream", device="top.qcow2", job_id="t", speed=1)
c.until_status("running")
assert c.get("quit") == {}
events = c.until_status("null")
assert [e["event"] for e in events].count("BLOCK_JOB_CANCELLED") == 1, events
PY
await_end "$nbdkit_pid"
qemu-img info -f qcow2 "$d/top.qcow2" | grep -q "^backing file: $d/one.qcow2\$"
rm "$d/two.qcow2"
check_clean "$d/top.qcow2"
qemu-img compare -f qcow2 -F raw "$d/top.qcow2" "$d/model.raw"

# What is not possible.
refused ()
{
  start_nbdkit control="$sockdir/qmp" "$1"
  PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$2" <<'PY'
import sys
from qmp import Client
Client(sys.argv[1]).refuses(sys.argv[2], "block-stream", device="disk", job_id="j")
PY
  stop_nbdkit
}
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$d/snap.qcow2"
qemu-img snapshot -c s1 "$d/snap.qcow2"
refused "$d/snap.qcow2" 'an internal snapshot needs them: s1'
qemu-img create -q -f qcow2 -o data_file="$d/data.raw" -b base.qcow2 -F qcow2 \
  "$d/data.qcow2"
refused "$d/data.qcow2" 'external data file'
