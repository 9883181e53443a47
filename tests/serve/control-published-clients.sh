#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Programs that are known to drive QEMU send their commands in their order, and get the
# answers that qemu-storage-daemon gives: the disks of beta9's sandboxes (pkg/disk), and
# libvirt's external snapshots, commit of a layer and of the image on top, pull and copy.  Both
# disks then show the same.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version

for s in ours theirs; do
  mkdir "$tmp/$s"
  qemu-img create -q -f qcow2 "$tmp/$s/a.qcow2" 8M
  for i in copy 1 2 3 4 5 7; do
    qemu-img create -q -f qcow2 "$tmp/$s/$i.qcow2" 8M
  done
  # (beta9's overlays name what they lie over.)
  qemu-img rebase -u -f qcow2 -b "$tmp/$s/a.qcow2" -F qcow2 "$tmp/$s/1.qcow2"
  qemu-img rebase -u -f qcow2 -b "$tmp/$s/copy.qcow2" -F qcow2 "$tmp/$s/7.qcow2"
  for i in 1 2 3 4; do
    qemu-img rebase -u -f qcow2 -b "$tmp/$s/$i.qcow2" -F qcow2 "$tmp/$s/$((i + 1)).qcow2"
  done
done
start_both_served a.qcow2 node0

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" "$sock" <<'PY'
import sys
from qmp import Both, connect

servers = Both(*sys.argv[1:3])
get = servers.get
disks = [connect(sys.argv[3]), connect(sys.argv[1] + "/t.nbd")]
written = 0

def write():
    """Half of it over what was written before."""
    global written
    written += 1
    for h in disks:
        h.pwrite(bytes([written]) * (1 << 20), written << 19)

def files():
    """What beta9 makes of query-named-block-nodes: files of its layers."""
    def of(c):
        return {n["node-name"]: n["file"] for n in c.get("query-named-block-nodes")
                if n["drv"] == "qcow2"}
    return servers.compare("files", of)

def added(name, file, **more):
    get("blockdev-add", driver="qcow2", node_name=name,
        file={"driver": "file", "filename": "DIR/%s.qcow2" % file}, **more)

def until_job(id, wanted):
    """Asks again and again: a job of beta9."""
    for c in servers.clients:
        while True:
            job = [j for j in c.get("query-jobs") if j["id"] == id][0]
            assert job.get("error") is None, job
            if job["status"] == wanted:
                break

def hear(id, *states):
    """Events of a job of libvirt."""
    for c in servers.clients:
        seen = [e["data"].get("error") for e in c.until(
            lambda e: e["event"] == "JOB_STATUS_CHANGE" and e["data"]["id"] == id and
            e["data"]["status"] in states)]
        assert not any(seen), seen

# --- beta9: layers, and the oldest merged

write()
get("transaction", actions=[{"type": "blockdev-snapshot-sync", "data": {
    "node-name": "node0", "snapshot-file": "DIR/1.qcow2", "snapshot-node-name": "fmt-1",
    "format": "qcow2", "mode": "existing"}}])
assert files()["fmt-1"] == "DIR/1.qcow2"
write()
added("fmt-2", "2", backing=None)
get("transaction", actions=[{"type": "blockdev-snapshot",
                             "data": {"node": "fmt-1", "overlay": "fmt-2"}}])
assert files()["fmt-2"] == "DIR/2.qcow2"
for c in servers.clients:
    assert any(s["node-name"] == "fmt-2" and "wr_bytes" in s["stats"]
               for s in c.get("query-blockstats", query_nodes=True))
write()
get("block-commit", job_id="merge", device="fmt-2", top_node="fmt-1", base_node="node0",
    auto_dismiss=False)
until_job("merge", "concluded")
get("job-dismiss", id="merge")
write()

# --- libvirt: a file and an image are two nodes

def libvirt_add(n, file, **more):
    get("blockdev-add", driver="file", filename="DIR/%s.qcow2" % file,
        node_name="libvirt-%d-storage" % n, auto_read_only=True, discard="unmap")
    get("blockdev-add", node_name="libvirt-%d-format" % n, read_only=False, driver="qcow2",
        file="libvirt-%d-storage" % n, discard="unmap", **more)

def libvirt_del(n):
    servers.ask("blockdev-del", node_name="libvirt-%d-storage" % n)     # in use
    for kind in "format", "storage":
        get("blockdev-del", node_name="libvirt-%d-%s" % (n, kind))
    for c in servers.clients:
        assert not any("libvirt-%d-" % n in node["node-name"]
                       for node in c.get("query-named-block-nodes"))

for n, below in (3, "fmt-2"), (4, "libvirt-3-format"), (5, "libvirt-4-format"):
    libvirt_add(n, str(n), backing=None)
    get("transaction", actions=[{"type": "blockdev-snapshot", "data": {
        "node": below, "overlay": "libvirt-%d-format" % n}}])
    write()
get("block-commit", job_id="commit-vda-libvirt-4-format", device="libvirt-5-format",
    auto_finalize=True, auto_dismiss=False, top_node="libvirt-4-format",
    base_node="libvirt-3-format", backing_file="DIR/3.qcow2")
hear("commit-vda-libvirt-4-format", "concluded")
get("job-dismiss", id="commit-vda-libvirt-4-format")
libvirt_del(4)
write()
get("block-stream", device="libvirt-5-format", job_id="pull-vda-libvirt-5-format",
    base_node="fmt-2", backing_file="DIR/2.qcow2", auto_finalize=True, auto_dismiss=False)
hear("pull-vda-libvirt-5-format", "concluded")
get("job-dismiss", id="pull-vda-libvirt-5-format")
libvirt_del(3)
write()
libvirt_add(6, "copy", backing=None)
get("blockdev-mirror", job_id="copy-vda-libvirt-5-format", device="libvirt-5-format",
    target="libvirt-6-format", sync="full", auto_finalize=True, auto_dismiss=False)
hear("copy-vda-libvirt-5-format", "ready")
write()
get("job-complete", id="copy-vda-libvirt-5-format")
hear("copy-vda-libvirt-5-format", "concluded")
get("job-dismiss", id="copy-vda-libvirt-5-format")
libvirt_del(5)
write()
libvirt_add(7, "7", backing=None)
get("transaction", actions=[{"type": "blockdev-snapshot", "data": {
    "node": "libvirt-6-format", "overlay": "libvirt-7-format"}}])
write()
get("block-commit", job_id="commit-vda-libvirt-7-format", device="libvirt-7-format",
    auto_finalize=True, auto_dismiss=False, base_node="libvirt-6-format")
hear("commit-vda-libvirt-7-format", "ready")
write()
get("job-complete", id="commit-vda-libvirt-7-format")
hear("commit-vda-libvirt-7-format", "concluded")
get("job-dismiss", id="commit-vda-libvirt-7-format")
libvirt_del(7)
write()
for h in disks:
    h.flush()
    h.shutdown()
get("quit")
PY
await_nbdkit
end_storage_daemon
for s in ours theirs; do check_clean "$tmp/$s/copy.qcow2"; done
qemu-img compare -q -f qcow2 -F qcow2 "$tmp/ours/copy.qcow2" "$tmp/theirs/copy.qcow2"
