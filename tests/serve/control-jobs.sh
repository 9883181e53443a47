#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Jobs as qemu-storage-daemon has them: the same script of commands for block-stream, right
# and wrong, gets the same answers, errors, states and events from both, in each state that
# a job can have.  (How far a job is when it is paused or cancelled may differ.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version

make_chain ()
{
  mkdir "$tmp/$1"
  qemu-img create -q -f qcow2 "$tmp/$1/b0.qcow2" 16M
  qemu-io -f qcow2 -c 'write -P 1 0 8M' "$tmp/$1/b0.qcow2"
  qemu-img create -q -f qcow2 -b b0.qcow2 -F qcow2 "$tmp/$1/b1.qcow2"
  qemu-io -f qcow2 -c 'write -P 2 0 4M' "$tmp/$1/b1.qcow2"
  qemu-img create -q -f qcow2 -b b1.qcow2 -F qcow2 "$tmp/$1/top.qcow2"
  qemu-io -f qcow2 -c 'write -P 3 10M 1M' "$tmp/$1/top.qcow2"
}
make_chain ours
make_chain theirs

start_both top.qcow2 disk

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" <<'PY'
import subprocess
import sys
from qmp import Both

servers = Both(*sys.argv[1:], lambda key, of: key in ("current-progress", "busy") or
               (key == "offset" and of[key] != of.get("len")))
clients = ours, theirs = servers.clients
dirs, both, compare, until = (servers.dirs, servers.ask, servers.compare,
                              servers.until_status)

def stream(**more):
    return both("block-stream", **{"device": "disk", "job_id": "j", **more})

def query():
    both("query-jobs")
    both("query-block-jobs")

def all_verbs(name):
    """In a state in which none is possible."""
    for verb in "pause", "resume", "cancel", "complete":
        if verb not in possible[name]:
            both("job-" + verb, id="j")
            both("block-job-" + verb, device="j")
    for verb in "finalize", "dismiss":
        if verb not in possible[name]:
            both("job-" + verb, id="j")
            both("block-job-" + verb, id="j")
    if "set-speed" not in possible[name]:
        both("block-job-set-speed", device="j", speed=3)
    query()

possible = {
    "none": [], "running": ["pause", "cancel", "set-speed"],
    "paused": ["resume", "cancel", "set-speed"], "pending": ["cancel", "finalize"],
    "concluded": ["dismiss"],
}

# Arguments.
query()
all_verbs("none")
both("block-stream")
both("block-stream", device="nope", job_id="j")
for id in "1x", "", "a b", "x/y", "-x":
    stream(job_id=id)
stream(speed=-1)
until("null")
stream(speed="x")
stream(speed=1.5)
stream(on_error="foo")
stream(auto_finalize=1)
stream(auto_dismiss="yes")
stream(foo=1)
stream(base=1)
stream(base="DIR/b0.qcow2", base_node="x")
stream(base="DIR/b0.qcow2", bottom="x")
stream(bottom="DIR/b0.qcow2", base_node="x")
for base in "nope", "", "DIR/top.qcow2", "b2.qcow2", "DIR", "nbd://localhost/":
    stream(base=base)
stream(base_node="nope")
stream(base_node="disk")
stream(bottom="nope")
stream(backing_file="x")
for command in "job-pause", "job-cancel", "job-dismiss":
    both(command)
    both(command, id=1)
    both(command, device="j")
both("block-job-pause", id="j")
both("block-job-cancel", device="j", force=1)
both("block-job-set-speed", device="j")
both("block-job-set-speed", device="j", speed="x")

# A job that waits for its speed, and then is paused.
stream(speed=1)
until("running")
stream(job_id="k")
stream()
all_verbs("running")
both("block-job-set-speed", device="j", speed=-1)
both("block-job-pause", device="j")
until("paused")
both("job-pause", id="j")
both("block-job-cancel", device="j")
all_verbs("paused")
both("block-job-set-speed", device="j", speed=2)
query()
both("job-resume", id="j")
until("running")
both("job-pause", id="j")
until("paused")
both("block-job-resume", device="j")
until("running")
both("block-job-cancel", device="j")
until("null")
all_verbs("none")

# Cancelled while it is paused, by force; and without being dismissed.
stream(speed=1)
until("running")
both("job-pause", id="j")
until("paused")
both("block-job-cancel", device="j", force=True)
until("null")
stream(speed=1, auto_dismiss=False)
until("running")
both("job-cancel", id="j")
until("concluded")
all_verbs("concluded")
both("job-dismiss", id="j")
until("null")

# What changes the chain is not possible meanwhile; bitmaps are.
stream(speed=1)
until("running")
both("block-dirty-bitmap-add", node="disk", name="b", persistent=True)
both("block-dirty-bitmap-remove", node="disk", name="b")
for c in clients:
    for command, arguments in (
            ("blockdev-snapshot-sync", {"node_name": "disk", "snapshot_node_name": "n",
                                        "snapshot_file": dirs[c] + "/n.qcow2"}),
            ("blockdev-snapshot-internal-sync", {"device": "disk", "name": "s"}),
            ("blockdev-snapshot-delete-internal-sync", {"device": "disk", "name": "s"}),
            ("block_resize", {"node_name": "disk", "size": 32 << 20}),
            ("change-backing-file", {"device": "disk", "image_node_name": "disk",
                                     "backing_file": "x"})):
        answer = c.ask(command, **arguments)
        assert "error" in answer, (command, answer)
        # (QEMU has another text for most of them, because of a node of the job's own.)
        if c is ours:
            assert "is busy: block device is in use by block job: stream" in \
                answer["error"]["desc"], answer
    c.events = []
both("job-cancel", id="j")
until("null")

# Without auto-finalize.
stream(base="DIR/b0.qcow2", auto_finalize=False, auto_dismiss=False)
until("pending")
servers.until_event("BLOCK_JOB_PENDING")
all_verbs("pending")
both("block-job-cancel", device="j")
until("concluded")
all_verbs("concluded")
both("block-job-dismiss", id="j")
until("null")

def backing():
    """What the header says."""
    def of(c):
        out = subprocess.run(["qemu-img", "info", "-U", "-f", "qcow2",
                              dirs[c] + "/top.qcow2"], capture_output=True, text=True,
                             check=True).stdout
        return [line.replace(dirs[c], "DIR") for line in out.splitlines()
                if line.startswith("backing")]
    return compare("backing file", of)

assert backing()[0].startswith("backing file: b1.qcow2")
stream(base="b1.qcow2")
until("null")
assert backing()[0] == "backing file: DIR/b1.qcow2"
stream(base="DIR/b0.qcow2", backing_file="b0.qcow2", auto_finalize=False,
       auto_dismiss=False)
until("pending")
servers.until_event("BLOCK_JOB_PENDING")
both("job-finalize", id="j")
until("concluded")
query()
both("job-dismiss", id="j")
until("null")
assert backing()[0].startswith("backing file: b0.qcow2")

# The rest, and then there is nothing more to do.
stream(speed=1 << 40)
assert [e["event"] for e in until("null")].count("BLOCK_JOB_COMPLETED") == 1
assert backing() == []
stream(auto_dismiss=False, speed=5)
until("concluded")
query()
both("block-job-dismiss", id="j")
until("null")
print(servers.count, "commands")
for c in clients:
    c.ask("quit")
PY
await_end "$nbdkit_pid"
end_storage_daemon
for i in ours theirs; do check_clean "$tmp/$i/top.qcow2"; done
qemu-img compare -f qcow2 -F qcow2 "$tmp/ours/top.qcow2" "$tmp/theirs/top.qcow2"
