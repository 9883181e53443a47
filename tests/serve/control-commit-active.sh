#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# block-commit of the image on top answers as qemu-storage-daemon does, and its job has the
# same states and events: when it completes and clients go on with the base, when it is
# cancelled before or after it was ready, paused, or not finalized by itself.  Afterwards both
# servers leave the same in all files.  The order of commands is libvirt's.  With clients that
# write, their disk shows what they wrote at any time, and after the pivot kill -9 loses
# nothing, with the files of the layers that have gone removed.  What could go wrong is
# refused in a line: a base that is raw or in use, version 2.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version

make_chain ()
{
  local d="$tmp/$1"

  mkdir "$d"
  qemu-img create -q -f qcow2 "$d/b.qcow2" 7M
  qemu-io -f qcow2 -c 'write -P 1 0 5M' -c 'write -z 5M 1M' "$d/b.qcow2"
  qemu-img create -q -f qcow2 -b "$d/b.qcow2" -F qcow2 "$d/m.qcow2" 8M
  qemu-io -f qcow2 -c 'write -P 2 1M 1M' -c 'write -z 2M 128k' -c 'write -P 2 7M 64k' \
    "$d/m.qcow2"
  qemu-img create -q -f qcow2 -b "$d/m.qcow2" -F qcow2 "$d/a.qcow2"
  qemu-io -f qcow2 -c 'write -P 3 3M 1M' -c 'write -z 4M 128k' "$d/a.qcow2"
}
make_chain ours
make_chain theirs
start_both_served a.qcow2 node0

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" <<'PY'
import sys
from qmp import ServedBoth

sockdir, tmp = sys.argv[1:]
both = ServedBoth(sockdir, tmp)
ours, same, ok = both.ours, both.ask, both.get
ready, gone, until = both.until_ready, both.until_gone, both.until_event
handles, write, same_contents = both.handles, both.write, both.same_contents

def snapshot(name):
    ok("blockdev-snapshot-sync", node_name="node0" if name == "s1" else "s1",
       snapshot_file="DIR/" + name + ".qcow2", snapshot_node_name=name)

commit = "block-commit"
same(commit, device="node0", backing_file="x")
same(commit, device="node0", base="DIR/nope.qcow2")
same(commit, device="node0", job_id="9j")
same(commit, device="node0", job_id="j", speed=-1)
for c in both.clients:
    c.events.clear()
ok("query-jobs")

# Cancelled when it was ready: the base is the disk of that instant, the top goes on.
job = dict(job_id="c", device="node0", base="DIR/m.qcow2")
ok(commit, **job)
events = ready("c")
assert [e["data"].get("status") for e in events] == \
    ["created", "running", "ready", None], events
assert events[-1]["data"]["type"] == "commit"
ok("query-jobs")
same("query-block-jobs")
ours.refuses("is busy", commit, **dict(job, job_id="d"))
write(b"x" * 512, 6 << 20)
ok("job-pause", id="c")
until("JOB_STATUS_CHANGE", status="standby")
ok("job-resume", id="c")
until("JOB_STATUS_CHANGE", status="ready")
ok("block-job-set-speed", device="c", speed=1 << 30)
ok("block-job-cancel", device="c")
assert gone("c")[-3]["event"] == "BLOCK_JOB_COMPLETED"
assert same_contents("m.qcow2")[6 << 20] == ord("x")
write(b"y" * 512, 6 << 20)
assert same_contents("m.qcow2")[6 << 20] == ord("x")

# By force, and before it was ready.
for cancel, more in ("job-cancel", {"id": "f"}), ("block-job-cancel",
                                                  {"device": "f", "force": True}):
    ok(commit, **dict(job, job_id="f"))
    ready("f")
    ok(cancel, **more)
    assert gone("f")[-3]["event"] == "BLOCK_JOB_CANCELLED"
ok(commit, **dict(job, job_id="s", speed=1))
ok("job-cancel", id="s")
for c in both.clients:
    c.until_event("JOB_STATUS_CHANGE", id="s", status="null")

# As libvirt does it: down to the lowest layer, which grows.
ok(commit, job_id="commit-vda-libvirt-1-format", device="node0", top="DIR/a.qcow2",
   base="DIR/b.qcow2", auto_finalize=True, auto_dismiss=False)
ready("commit-vda-libvirt-1-format")
ok("query-jobs")
write(b"z" * 65536, 5 << 20)
ok("job-complete", id="commit-vda-libvirt-1-format")
until("JOB_STATUS_CHANGE", id="commit-vda-libvirt-1-format", status="concluded")
ok("query-jobs")
ok("job-dismiss", id="commit-vda-libvirt-1-format")
gone("commit-vda-libvirt-1-format")
both.compare("size", lambda c: [
    n["image"]["virtual-size"] for n in c.get("query-named-block-nodes")
    if n["drv"] == "qcow2" and n["file"].endswith("/b.qcow2")])
write(b"w" * 512, 4 << 20)
for h in handles:
    assert h.pread(65536, 5 << 20) == b"z" * 65536
assert same_contents("b.qcow2")[4 << 20] == ord("w")
# What has left is shown until it is removed.
def left(c):
    return [(n["drv"], n["ro"], n["file"], n["image"]["virtual-size"])
            for n in c.get("query-named-block-nodes") if n["node-name"] == "node0"]
assert len(both.compare("left", left)) == 1
ok("blockdev-del", node_name="node0")
assert both.compare("removed", left) == []
assert [n["file"] for n in ours.get("query-named-block-nodes")] == [tmp + "/ours/b.qcow2"]
with open(tmp + "/model.raw", "wb") as f:
    f.write(handles[0].pread(8 << 20, 0))
PY
# at_rest IMAGE: after kill -9, which may come before the last writer's end has been noticed.
at_rest ()
{
  start_nbdkit "$1"
  nbdsh_run -c 'h.pwrite(h.pread(1, 0), 0)'
  stop_nbdkit
}
kill9_nbdkit
end_storage_daemon
at_rest "$tmp/ours/b.qcow2"
for i in a m b; do
  check_clean "$tmp/ours/$i.qcow2"
done
qemu-img compare -q -f qcow2 -F raw "$tmp/ours/b.qcow2" "$tmp/model.raw"

# --- with clients ---

make_chain live
d=$tmp/live
qemu-img convert -f qcow2 -O raw "$d/a.qcow2" "$d/model.raw"
start_nbdkit control="$sockdir/qmp" "$d/a.qcow2"
hold_in_qemu_io -r -f qcow2 "$d/b.qcow2"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$uri" "$d" "$qemu_io" <<'PY'
import os
import signal
import sys
from qmp import Client, Writers, connect

c, uri, d, reader = Client(sys.argv[1]), *sys.argv[2:]
socket = uri.split("socket=")[1]

def files():
    image, found = c.get("query-block")[0]["inserted"]["image"], []
    while image:
        found.append(os.path.basename(image["filename"]))
        image = image.get("backing-image")
    return found

writers = Writers(uri, d + "/model.raw", 3).start()
c.refuses("PID " + reader, "block-commit", device="disk", job_id="j")
os.kill(int(reader), signal.SIGKILL)
while c.ask("block-commit", device="disk", job_id="j", speed=1 << 20).get("error"):
    pass                        # until it has gone
c.until_status("running")
c.refuses("is busy", "block-commit", device="disk", job_id="k", top_node="node1")
c.get("job-cancel", id="j")
c.until_status("null")
assert files() == ["a.qcow2", "m.qcow2", "b.qcow2"], files()

# A client that reads a layer as it was is in the way of the pivot.
c.get("block-commit", device="disk", job_id="j", auto_finalize=False)
c.until_event("BLOCK_JOB_READY")
layer = connect(socket, "layer:1")
c.get("job-complete", id="j")
c.until_status("pending")
c.get("job-finalize", id="j")
failed = c.until_status("null")
assert any("a client has used a layer" in e["data"].get("error", "") for e in failed), failed
layer.shutdown()

for round in range(3):
    over = "%s/over%u.qcow2" % (d, round)
    while c.ask("block-commit", device="disk", job_id="j").get("error"):
        pass                    # until the client of the layer has gone
    c.until_event("BLOCK_JOB_READY")
    c.get("block-job-complete", device="j")
    done = [e["data"] for e in c.until_status("null") if e["event"] == "BLOCK_JOB_COMPLETED"]
    assert len(done) == 1 and "error" not in done[0], done
    assert files() == ["b.qcow2"], files()
    for gone in "a.qcow2", "m.qcow2", over.replace(str(round), str(round - 1)):
        if os.path.exists(gone if gone[0] == "/" else d + "/" + gone):
            os.unlink(gone if gone[0] == "/" else d + "/" + gone)
    if round < 2:
        c.get("blockdev-snapshot-sync", device="disk", snapshot_file=over)
writers.end()
PY
kill9_nbdkit
at_rest "$d/b.qcow2"
check_clean "$d/b.qcow2"
qemu-img compare -q -f qcow2 -F raw "$d/b.qcow2" "$d/model.raw"

# --- refused ---

truncate -s 8M "$tmp/base.raw"
qemu-img create -q -f qcow2 -b base.raw -F raw "$tmp/over-raw.qcow2"
qemu-img create -q -f qcow2 -o compat=0.10 -b live/b.qcow2 -F qcow2 "$tmp/old.qcow2"
ask ()
{
  PYTHONPATH="$srcdir/lib" "$python" -c '
import sys
from qmp import Client
Client(sys.argv[1]).refuses(sys.argv[2], "block-commit", device=sys.argv[3])' "$@"
}
start_nbdkit control="$sockdir/qmp" "$tmp/over-raw.qcow2"
ask "$sockdir/qmp" "its base is not a qcow2 image" disk
stop_nbdkit
start_nbdkit control="$sockdir/qmp" "$tmp/old.qcow2"
ask "$sockdir/qmp" "it is of version 2" disk
stop_nbdkit
