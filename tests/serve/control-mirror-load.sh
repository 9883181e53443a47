#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A disk moves from one place to the next while clients write: to a qcow2 image in a file,
# to one on an NBD server, and back.  Each client always reads what it has written; what
# each image left behind shows is of one instant; after kill -9 all that was flushed is in
# the last one.  A client of a snapshot goes on reading it, in an image that the disk has
# left, and nobody else writes that as long.  A target that has no space ends the job, or
# pauses it until there is some; the disk goes on.  The server ends in the middle of a job
# as it does otherwise.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdkit --dump-plugin file
requires nbdkit --filter=error null --version

d="$tmp/images"
mkdir "$d"
make_image "$d/a.qcow2" 8M
qemu-io -f qcow2 -c 'write -P 7 0 8M' "$d/a.qcow2"
qemu-img snapshot -c s0 "$d/a.qcow2"
qemu-io -f qcow2 -c 'write -P 0 0 8M' "$d/a.qcow2"
qemu-img create -q -f qcow2 -o cluster_size=4k "$d/b.qcow2" 8M
qemu-img create -q -f qcow2 -o extended_l2=on,cluster_size=128k "$d/c.qcow2" 8M
qemu-img create -q -f qcow2 "$d/far.qcow2" 8M
truncate -s 16M "$d/far.qcow2"
truncate -s 8M "$d/copy.raw"
truncate -s 8M "$d/full.raw"

nbdkit --exit-with-parent -f -U "$sockdir/far" file "$d/far.qcow2" &
helper_pids+=($!)
await -p "$!" listens "$sockdir/far"
nbdkit --exit-with-parent -f -U "$sockdir/full" --filter=error file "$d/full.raw" \
  error=ENOSPC error-pwrite-rate=100% error-zero-rate=100% error-trim-rate=100% \
  error-file="$tmp/no-space" &
helper_pids+=($!)
await -p "$!" listens "$sockdir/full"
start_nbdkit control="$sockdir/qmp" "$d/a.qcow2"

cat > "$tmp/load.py" <<'PY'
import os
import random
import subprocess
import sys
import threading
import nbd
from qmp import Client

sockdir, tmp, uri = sys.argv[1:]
d = tmp + "/images/"
c = Client(sockdir + "/qmp")
SHARE = 2 << 20
CLIENTS = 4

def connect():
    h = nbd.NBD()
    h.connect_uri(uri)
    return h

class Writer:
    """Numbers its writes: a sector says when it was written."""
    def __init__(self, n):
        self.n, self.h, self.count = n, connect(), 0
        self.model = bytearray(SHARE)
        self.rng = random.Random(n)
        self.log = []

    def run(self):
        try:
            # (A mirror whose clients write more than can be copied does not end.)
            while not stop.wait(0.05):
                self.step()
        except Exception as e:
            errors.append(e)

    def step(self):
        size = 512 * self.rng.randrange(1, 200)
        at = 512 * self.rng.randrange((SHARE - size) // 512)
        self.count += 1
        word = self.count.to_bytes(8, "little")
        data = word * (size // 8)
        self.log.append((at, size))
        self.h.pwrite(data, self.n * SHARE + at)
        self.model[at:at + size] = data
        if self.count % 10 == 0:
            assert self.h.pread(SHARE, self.n * SHARE) == self.model
        if self.count % 17 == 0:
            self.h.flush()

    def check_instant(self, share, name):
        """Is it what was there after one of the writes?"""
        newest = max(int.from_bytes(share[at:at + 8], "little")
                     for at in range(0, SHARE, 512))
        expected = bytearray(SHARE)
        for i, (at, size) in enumerate(self.log[:newest]):
            expected[at:at + size] = (i + 1).to_bytes(8, "little") * (size // 8)
        assert expected == share, (name, self.n, newest)

stop, errors = threading.Event(), []
writers = [Writer(n) for n in range(CLIENTS)]
threads = []

def start():
    stop.clear()
    threads[:] = [threading.Thread(target=w.run, daemon=True) for w in writers]
    for t in threads:
        t.start()

def rest():
    stop.set()
    for t in threads:
        t.join()
    assert not errors, errors

def until(event, **data):
    def found(e):
        assert event == "BLOCK_JOB_COMPLETED" or "error" not in e["data"], e
        return e["event"] == event and data.items() <= e["data"].items()
    return c.until(found)[-1]["data"]

def add(name, file, driver="qcow2"):
    c.get("blockdev-add", driver=driver, node_name=name, file=file)

def file(name):
    return {"driver": "file", "filename": d + name}

def server(name):
    return {"driver": "nbd", "server": {"type": "unix", "path": sockdir + "/" + name}}

def mirror(id, target, **more):
    c.get("blockdev-mirror", job_id=id, device="disk", target=target, sync="full", **more)

def move(id, target):
    mirror(id, target)
    until("BLOCK_JOB_READY", device=id)
    c.get("job-complete", id=id)
    assert "error" not in until("BLOCK_JOB_COMPLETED", device=id)
    until("JOB_STATUS_CHANGE", id=id, status="null")
    assert c.get("query-block-exports")[0]["node-name"] == target

def contents(name, fmt):
    subprocess.run(["qemu-img", "convert", "-f", fmt, "-O", "raw", d + name, d + "shown"],
                   check=True)
    with open(d + "shown", "rb") as f:
        return f.read()

def is_locked(name):
    return subprocess.run(["qemu-io", "-f", "qcow2", "-c", "quit", d + name],
                          stderr=subprocess.DEVNULL).returncode != 0

def check_instant(name, fmt="qcow2"):
    shown = contents(name, fmt)
    for w in writers:
        w.check_instant(shown[w.n * SHARE:(w.n + 1) * SHARE], name)
PY

PYTHONPATH="$srcdir/lib:$tmp" "$python" - "$sockdir" "$tmp" "$uri" <<'PY'
from load import *

add("b", file("b.qcow2"))
add("far", server("far"))
add("c", file("c.qcow2"))
add("copy", file("copy.raw"), "raw")
add("full", server("full"), "raw")

snapshot = nbd.NBD()
snapshot.set_export_name("s0")
snapshot.connect_unix(sockdir + "/main.sock")
start()
move("j1", "b")
subprocess.run(["qemu-img", "check", "-q", d + "a.qcow2"], check=True)
check_instant("a.qcow2")
move("j2", "far")
check_instant("b.qcow2")
assert snapshot.pread(8 << 20, 0) == b"\7" * (8 << 20)
assert is_locked("a.qcow2") and not is_locked("b.qcow2")
snapshot.shutdown()
while is_locked("a.qcow2"):
    pass
rest()
start()

# A copy of one instant.
mirror("k", "copy")
until("BLOCK_JOB_READY", device="k")
c.get("block-job-cancel", device="k")
assert "error" not in until("BLOCK_JOB_COMPLETED", device="k")
until("JOB_STATUS_CHANGE", id="k", status="null")
check_instant("copy.raw", "raw")

# No space.
open(tmp + "/no-space", "w").close()
mirror("f1", "full")
e = until("BLOCK_JOB_ERROR", device="f1")
assert (e["operation"], e["action"]) == ("write", "report"), e
assert until("BLOCK_JOB_COMPLETED", device="f1")["error"]
until("JOB_STATUS_CHANGE", id="f1", status="null")
mirror("f2", "full", on_target_error="enospc")
assert until("BLOCK_JOB_ERROR", device="f2")["action"] == "stop"
until("JOB_STATUS_CHANGE", id="f2", status="paused")
job = c.get("query-block-jobs")[0]
assert job["io-status"] == "nospace" and job["paused"], job
os.unlink(tmp + "/no-space")
c.get("job-resume", id="f2")

def end_copy(id):
    until("BLOCK_JOB_READY", device=id)
    c.get("block-job-cancel", device=id)
    assert "error" not in until("BLOCK_JOB_COMPLETED", device=id)
    until("JOB_STATUS_CHANGE", id=id, status="null")
end_copy("f2")
open(tmp + "/no-space", "w").close()
mirror("f3", "full", on_target_error="ignore")
for _ in range(3):
    assert until("BLOCK_JOB_ERROR", device="f3")["action"] == "ignore"
os.unlink(tmp + "/no-space")
end_copy("f3")
c.get("blockdev-del", node_name="full")
check_instant("full.raw", "raw")

move("j3", "c")
check_instant("far.qcow2")
rest()
for w in writers:
    w.h.flush()
with open(tmp + "/model", "wb") as f:
    for w in writers:
        f.write(w.model)
PY

kill9_nbdkit
for image in a b far; do check_clean "$d/$image.qcow2"; done
start_nbdkit control="$sockdir/qmp" "$d/c.qcow2"
nbdsh_run -c 'h.pwrite(h.pread(1, 0), 0)'

# The end of the server, with a job.
PYTHONPATH="$srcdir/lib:$tmp" "$python" - "$sockdir" "$tmp" "$uri" <<'PY'
from load import *
subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", d + "e.qcow2", "8M"], check=True)
add("e", file("e.qcow2"))
mirror("slow", "e", speed=1)
assert c.get("query-jobs")[0]["status"] == "running"
PY
stop_nbdkit
check_clean "$d/c.qcow2"
check_clean "$d/e.qcow2"
qemu-img compare -f qcow2 -F raw "$d/c.qcow2" "$tmp/model"
