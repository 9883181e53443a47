#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# blockdev-mirror answers as qemu-storage-daemon does, and its job has the same states and
# events: when it completes and the disk moves, when it is cancelled before or after it
# was ready, paused, or not finalized by itself, and when it fails.  Targets are raw and
# qcow2 images; after each job both servers leave the same in them.  Targets that cannot
# take the disk's place are refused by job-complete, and the job stays.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version

make_one ()
{
  local d="$tmp/$1"
  mkdir "$d"
  qemu-img create -q -f qcow2 "$d/base.qcow2" 8M
  qemu-io -f qcow2 -c 'write -P 5 0 4M' "$d/base.qcow2"
  qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$d/a.qcow2"
  qemu-io -f qcow2 -c 'write -P 6 1M 1M' -c 'write -z 2M 64k' "$d/a.qcow2"
  for n in 1 2 3; do qemu-img create -q -f qcow2 "$d/t$n.qcow2" 8M; done
  qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 -o cluster_size=4k "$d/top.qcow2"
  qemu-img create -q -f qcow2 "$d/short.qcow2" 4M
  truncate -s 8M "$d/t.raw"
  truncate -s 8M "$d/none.raw"
}
make_one ours
make_one theirs

start_both_served a.qcow2 node0

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" <<'PY'
import subprocess
import sys
from qmp import ServedBoth

sockdir, tmp = sys.argv[1:]
both = ServedBoth(sockdir, tmp)
ours, same, ok = both.ours, both.ask, both.get
ready, gone, both_until = both.until_ready, both.until_gone, both.until_event
handles, write, same_contents = both.handles, both.write, both.same_contents

def add(name, file, driver="qcow2", **more):
    ok("blockdev-add", driver=driver, node_name=name,
       file={"driver": "file", "filename": "DIR/" + file}, **more)

mirror = "blockdev-mirror"
add("t1", "t1.qcow2")
add("r", "t.raw", driver="raw")
add("readonly", "short.qcow2", read_only=True)

# Wrong arguments.
job = dict(job_id="j", device="node0", target="t1", sync="full")
def wrong(**d):
    same(mirror, **{k: v for k, v in dict(job, **d).items() if v is not None})
same(mirror)
for key in "device", "target", "sync":
    wrong(**{key: None})
wrong(device="zz")
wrong(target="zz")
wrong(target="node0")
wrong(sync="foo")
wrong(sync="incremental")
wrong(sync="bitmap")
wrong(job_id="9j")
wrong(granularity=3)
wrong(granularity=1000)
wrong(granularity=128 << 20)
wrong(granularity="x")
wrong(buf_size=-1)
wrong(on_source_error="foo")
wrong(on_target_error="foo")
wrong(copy_mode="foo")
wrong(speed="x")
wrong(foo=1)
# (Each with events, as of a job that began and ended.)
same(mirror, **dict(job, target="readonly"))
same(mirror, **dict(job, speed=-1))
for c in both.clients:
    c.events.clear()
ok("query-jobs")

# The disk moves, with a client.
write(b"x" * 65536, 5 << 20)
ok(mirror, **job)
events = ready("j")
assert [e["data"].get("status") for e in events] == \
    ["created", "running", "ready", None], events
ok("query-jobs")
same("query-block-jobs")
same(mirror, **dict(job, job_id="k", target="r"))
same("blockdev-del", node_name="t1")
write(b"y" * 65536, 6 << 20)
same("job-pause", id="j")
both_until("JOB_STATUS_CHANGE", status="standby")
assert all(c.get("query-jobs")[0]["status"] == "standby" for c in both.clients)
same("job-resume", id="j")
both_until("JOB_STATUS_CHANGE", status="ready")
ok("job-complete", id="j")
gone("j")
ok("query-block-exports")
ok("query-jobs")
same("job-complete", id="j")
same("blockdev-del", node_name="t1")
write(b"z" * 65536, 7 << 20)
for h in handles:
    assert h.pread(65536, 6 << 20) == b"y" * 65536
old = same_contents("a.qcow2")
assert old[6 << 20] == ord("y") and old[7 << 20] == 0
assert same_contents("t1.qcow2")[7 << 20] == ord("z")

# Cancelled after it was ready: block-job-cancel leaves the disk of that instant.
job.update(device="t1", target="r")
for id, cancel, more in ("k1", "job-cancel", {"id": "k1"}), \
        ("k2", "block-job-cancel", {"device": "k2"}):
    ok(mirror, **dict(job, job_id=id))
    ready(id)
    write(id[1].encode() * 512, 4 << 20)
    ok(cancel, **more)
    assert gone(id)[-3]["event"] == ("BLOCK_JOB_CANCELLED" if id == "k1" else
                                     "BLOCK_JOB_COMPLETED")
assert same_contents("t.raw", "raw") == same_contents("t1.qcow2")

# By force, and before it was ready.
ok(mirror, **dict(job, job_id="f"))
ready("f")
ok("block-job-cancel", device="f", force=True)
gone("f")
ok(mirror, **dict(job, job_id="s", speed=1))
ok("job-cancel", id="s")
for c in both.clients:
    c.until_event("JOB_STATUS_CHANGE", id="s", status="null")

# Two steps by hand.
add("t2", "t2.qcow2")
job["target"] = "t2"
ok(mirror, **dict(job, job_id="m", auto_finalize=False, auto_dismiss=False))
ready("m")
ok("job-complete", id="m")
both_until("BLOCK_JOB_PENDING")
same("query-jobs")
ok("job-finalize", id="m")
both_until("JOB_STATUS_CHANGE", status="concluded")
same("query-jobs")
same("query-block-exports")
ok("job-dismiss", id="m")
gone("m")
write(b"w" * 512, 3 << 20)
assert same_contents("t2.qcow2")[3 << 20] == ord("w")

# Another size; QEMU tells in its own words.
ok("blockdev-del", node_name="readonly")
add("short", "short.qcow2")
ok(mirror, **dict(job, device="t2", target="short", job_id="d"))
for c in both.clients:
    last = c.until_event("BLOCK_JOB_COMPLETED", device="d")[-1]["data"]
    assert "Source and target image have different sizes" in last["error"], last
    c.until_event("JOB_STATUS_CHANGE", id="d", status="null")

# Here the rest is ours alone: QEMU would go on with what is not the disk.
def ours_add(name, file, driver="qcow2", **more):
    ours.get("blockdev-add", driver=driver, node_name=name,
             file={"driver": "file", "filename": tmp + "/ours/" + file}, **more)

ours.refuses("not possible", mirror,
             **dict(job, device="t2", target="r", copy_mode="write-blocking"))
ours_add("none", "none.raw", driver="raw")
ours.get(mirror, **dict(job, device="t2", target="none", job_id="n", sync="none"))
ours.until_event("BLOCK_JOB_READY", device="n")
ours.refuses("is not a qcow2 image", "job-complete", id="n")
assert ours.get("query-jobs")[0]["status"] == "ready"
handles[0].pwrite(b"n" * 512, 2 << 20)
ours.get("job-cancel", id="n")
ours.until_event("JOB_STATUS_CHANGE", id="n", status="null")
got = both.contents(ours, "none.raw", "raw")
assert got[2 << 20] == ord("n") and not any(got[:2 << 20]) and not any(got[3 << 20:])

# sync=top needs the same files below.
ours.get("blockdev-snapshot-sync", device="disk", snapshot_file=tmp + "/ours/over.qcow2",
         snapshot_node_name="over")
handles[0].pwrite(b"o" * 512, 1 << 20)
subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-u", "-b", "t2.qcow2", "-F", "qcow2",
                tmp + "/ours/next.qcow2", "8M"], check=True)
ours_add("t3", "t3.qcow2")
ours.get(mirror, **dict(job, device="disk", target="t3", job_id="p", sync="top"))
ours.until_event("BLOCK_JOB_READY", device="p")
ours.refuses("does not lie over the files", "job-complete", id="p")
ours.get("job-cancel", id="p")
ours.until_event("JOB_STATUS_CHANGE", id="p", status="null")
ours_add("next", "next.qcow2", backing="t2")
ours.get(mirror, **dict(job, device="disk", target="next", job_id="q", sync="top"))
ours.until_event("BLOCK_JOB_READY", device="q")
ours.get("job-complete", id="q")
ours.until_event("JOB_STATUS_CHANGE", id="q", status="null")
names = [n["node-name"] for n in ours.get("query-named-block-nodes")]
assert names[:2] == ["next", "t2"], names
handles[0].pwrite(b"p" * 512, 0)
handles[0].flush()
shown = handles[0].pread(8 << 20, 0)
assert both.contents(ours, "next.qcow2") == shown
assert both.contents(ours, "over.qcow2")[512:] == shown[512:]
with open(tmp + "/model.raw", "wb") as f:
    f.write(shown)
PY

kill9_nbdkit
for image in a t1 t2 t3 over; do check_clean "$tmp/ours/$image.qcow2"; done
start_nbdkit "$tmp/ours/next.qcow2"
nbdsh_run -c 'h.pwrite(h.pread(1, 0), 0)'
stop_nbdkit
check_clean "$tmp/ours/next.qcow2"
qemu-img compare -f qcow2 -F raw "$tmp/ours/next.qcow2" "$tmp/model.raw"

# With a directory, disks are copied; a target that another program uses, or that is not as
# secret as the disk, is refused.
mkdir "$tmp/dir" "$tmp/targets"
mv "$tmp/ours/next.qcow2" "$tmp/ours/t2.qcow2" "$tmp/dir"
truncate -s 8M "$tmp/targets/copy.raw" "$tmp/targets/used.raw"
qemu-img create -q -f qcow2 "$tmp/targets/t.qcow2" 8M
qemu-nbd -f raw -t -k "$sockdir/used.nbd" "$tmp/targets/used.raw" &
helper_pids+=($!)
await -p "$!" listens "$sockdir/used.nbd"
printf secret > "$tmp/secret"
qemu-img create -q -f qcow2 --object secret,id=s,file="$tmp/secret" \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 "$tmp/e.qcow2" 8M

cat > "$tmp/jobs.py" <<'PY'
import sys
from qmp import Client
c = Client(sys.argv[1] + "/qmp")
targets = sys.argv[2] + "/targets/"
def until(event):
    return c.until_event(event)[-1]["data"]
def add(name, file, driver="raw"):
    c.get("blockdev-add", driver=driver, node_name=name,
          file={"driver": "file", "filename": targets + file})
def mirror(device, target):
    c.get("blockdev-mirror", job_id="j", device=device, target=target, sync="full")
def fails(text, device, target):
    mirror(device, target)
    error = until("BLOCK_JOB_COMPLETED")["error"]
    assert text in error, error
    c.get("query-jobs")
PY

start_nbdkit control="$sockdir/qmp" dir="$tmp/dir"
PYTHONPATH="$srcdir/lib:$tmp" "$python" - "$sockdir" "$tmp" <<'PY'
from jobs import *
add("copy", "copy.raw")
add("used", "used.raw")
add("t", "t.qcow2", "qcow2")
fails("lock", "next.qcow2", "used")
mirror("next.qcow2", "t")
until("BLOCK_JOB_READY")
c.get("job-cancel", id="j")
until("BLOCK_JOB_CANCELLED")
mirror("next.qcow2", "copy")
until("BLOCK_JOB_READY")
c.get("block-job-cancel", device="j")
assert "error" not in until("BLOCK_JOB_COMPLETED")
PY
stop_nbdkit
qemu-img compare -f raw -F raw "$tmp/targets/copy.raw" "$tmp/model.raw"
check_clean "$tmp/targets/t.qcow2"

start_nbdkit control="$sockdir/qmp" passphrase="+$tmp/secret" "$tmp/e.qcow2"
PYTHONPATH="$srcdir/lib:$tmp" "$python" - "$sockdir" "$tmp" <<'PY'
from jobs import *
add("copy", "copy.raw")
fails("encrypted", "disk", "copy")
PY
stop_nbdkit
