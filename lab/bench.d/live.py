# SPDX-License-Identifier: BSD-3-Clause
"""What clients notice while a disk is changed: the longest time between two answers to
one that writes, in a loop, from before a command until after it; and how many answers it
gets while a job copies.  QEMU's server is qemu-storage-daemon here; the same commands go
to both.

Where nothing waits for a disk of the host (a directory on tmpfs for --out) these are the
pauses that the servers make themselves: the plugin's changes are durable when they are
answered, so with a disk its syncs are added."""

import json
import os
import shutil
import socket
import subprocess
import threading
import time

import nbd

import images
from images import GiB, MiB
from rows import LESS, Group, Row, Sample, settle
from servers import PLUGIN, QEMU, Server

BLOCK = 4096
KINDS = (QEMU, PLUGIN)
# The disk of published pauses, which depend on the number of its clusters.
LARGE = 100 * GiB
# Between two requests of a client that leaves a job some time, in seconds.
REST = 0.001


class Live(Server):
    """One that can be controlled; its node is node0, its device disk."""

    def __init__(self, config, kind, image):
        super().__init__(config, kind, image)
        self.control = os.path.join(config.sockets, "qmp")
        with open(image, "rb") as f:
            f.seek(24)
            self.size = int.from_bytes(f.read(8), "big")
        if kind == QEMU:
            self.name = "qemu-storage-daemon"
            self.argv = [
                "qemu-storage-daemon", "--chardev",
                "socket,path=%s,server=on,wait=off,id=c" % self.control,
                "--monitor", "chardev=c", "--blockdev",
                "driver=file,node-name=f0,filename=" + image, "--blockdev",
                "driver=qcow2,node-name=node0,file=f0", "--nbd-server",
                "addr.type=unix,addr.path=" + self.sock, "--export",
                "nbd,id=disk,node-name=node0,name=,writable=on"]
        else:
            self.argv += ["control=" + self.control]

    def __enter__(self):
        if os.path.exists(self.control):
            os.unlink(self.control)
        super().__enter__()
        self.monitor = socket.socket(socket.AF_UNIX)
        self.monitor.connect(self.control)
        self.lines = self.monitor.makefile("rb")
        self.lines.readline()
        self.tell("qmp_capabilities")
        return self

    def __exit__(self, *exception):
        self.lines.close()
        self.monitor.close()
        super().__exit__(*exception)

    def hear(self, wanted):
        while True:
            line = self.lines.readline()
            if not line:
                raise OSError("%s: %s" % (self.name, self.last_words()))
            message = json.loads(line)
            if "error" in message or "error" in message.get("data", {}):
                raise OSError("%s: %s" % (self.name, message))
            if wanted(message):
                return

    def tell(self, command, **arguments):
        self.monitor.sendall(json.dumps({
            "execute": command,
            "arguments": {k.replace("_", "-"): v for k, v in arguments.items()},
        }).encode())
        self.hear(lambda message: "return" in message)

    def await_event(self, event):
        self.hear(lambda message: message.get("event") == event)


class Writer:
    """A client that writes all the time, one block after the other."""

    def __init__(self, server, rest=0):
        self.handle = nbd.NBD()
        self.handle.connect_uri(server.uri)
        self.stop, self.rest, self.error = threading.Event(), rest, None
        # When answers came.
        self.times = []
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        data, size = os.urandom(BLOCK), self.handle.get_size()
        at = 0
        try:
            while not self.stop.is_set():
                self.handle.pwrite(data, at)
                self.times.append(time.monotonic())
                # Another cluster, and another table, each time.
                at = (at + (65536 * 7919)) % size
                if self.rest:
                    time.sleep(self.rest)
        except nbd.Error as e:
            self.error = e

    def __enter__(self):
        self.thread.start()
        time.sleep(0.1)
        return self

    def __exit__(self, *exception):
        time.sleep(0.1)
        self.stop.set()
        self.thread.join()
        self.handle.shutdown()
        if self.error:
            raise self.error


def watched(path, before, change, value, rest=0):
    """BEFORE and CHANGE are given the server.  VALUE: of the times of all answers, and
    when the change began and ended."""
    def sample(config, kind):
        image = images.fresh_copy(path, config.path("live.qcow2"))
        for name in "mid", "new", "target":
            if os.path.exists(config.path(name)):
                os.unlink(config.path(name))
        settle(config)
        with Live(config, kind, image) as server:
            before(server)
            with Writer(server, rest) as writer:
                began = time.monotonic()
                change(server)
                ended = time.monotonic()
            return Sample(value(writer.times, began, ended), server.peak_rss())
    return sample


def longest(times, began, ended):
    """The longest pause, in milliseconds."""
    seen = [t for t in times if t >= began - REST]
    return 1000 * max(b - a for a, b in zip(seen, seen[1:]))


def pace(times, began, ended):
    return sum(began <= t <= ended for t in times) / (ended - began)


# --- changes

def nothing(server):
    pass


def external_snapshot(server, name="new", below="node0"):
    server.tell("blockdev-snapshot-sync", node_name=below, format="qcow2",
                snapshot_file=server.config.path(name), snapshot_node_name=name)


def internal_snapshot(server):
    server.tell("blockdev-snapshot-internal-sync", device="node0", name="now")


def delete_snapshot(server):
    server.tell("blockdev-snapshot-delete-internal-sync", device="node0", name="now")


def add_bitmap(server):
    server.tell("block-dirty-bitmap-add", node="node0", name="b", persistent=True)


def resize(server):
    server.tell("block_resize", node_name="node0", size=server.size + GiB)


def stream(server):
    server.tell("block-stream", device="new", job_id="j")
    server.await_event("BLOCK_JOB_COMPLETED")


def two_layers(server):
    """The upper one has some data."""
    external_snapshot(server, "mid")
    h = nbd.NBD()
    h.connect_uri(server.uri)
    for offset in range(0, min(server.size, 64 * MiB), MiB):
        h.pwrite(os.urandom(MiB), offset)
    h.shutdown()


def three_layers(server):
    two_layers(server)
    external_snapshot(server, "new", "mid")


def commit_middle(server):
    server.tell("block-commit", device="new", job_id="j", base_node="node0",
                top_node="mid")
    server.await_event("BLOCK_JOB_COMPLETED")


def pivot(server):
    server.await_event("BLOCK_JOB_READY")
    server.tell("block-job-complete", device="j")
    server.await_event("BLOCK_JOB_COMPLETED")


def commit_active(server):
    server.tell("block-commit", device="mid", job_id="j", base_node="node0")
    pivot(server)


def add_target(server):
    target = server.config.path("target")
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", target, str(server.size)],
                   check=True)
    server.tell("blockdev-add", driver="qcow2", node_name="target",
                file={"driver": "file", "filename": target})


def mirror(server):
    server.tell("blockdev-mirror", device="node0", job_id="j", target="target",
                sync="full")


def mirror_all(server):
    mirror(server)
    pivot(server)


# Name, what comes before, the change, the client's rest.
SHORT = (
    ("a bitmap is added", nothing, add_bitmap, 0),
    ("external snapshot", nothing, external_snapshot, 0),
    ("internal snapshot", nothing, internal_snapshot, 0),
    ("internal snapshot, deleted", internal_snapshot, delete_snapshot, 0),
    ("commit of a middle layer", three_layers, commit_middle, 0),
    ("commit of the active layer, with its pivot", two_layers, commit_active, REST),
    ("mirror, its start", add_target, mirror, 0),
    ("growing by 1G", nothing, resize, 0))
LONG = (
    ("stream of the whole disk", external_snapshot, stream, 0),
    ("mirror of the whole disk, with its pivot", add_target, mirror_all, REST))


def missing():
    return None if shutil.which("qemu-storage-daemon") else "needs qemu-storage-daemon"


def rows_of(path, changes):
    # (QEMU's refuses to grow a disk that has clients.)
    rows = [Row(name, "ms", watched(path, before, change, longest, rest), better=LESS,
                kinds=(PLUGIN,) if change is resize else KINDS, goals={QEMU: 1})
            for name, before, change, rest in changes]
    for row in rows:
        if missing():
            row.skipped[QEMU] = missing()
    return rows


def large_image(path):
    """All clusters are allocated, and take no space: they were never written."""
    images.empty_qcow2(path, LARGE, preallocation="metadata")


def live(config):
    path = config.path("full.qcow2")
    rows = rows_of(path, (("nothing", nothing, nothing, 0),) + SHORT + LONG)
    rows.append(Row("writes during the stream", "IOPS",
                    watched(path, external_snapshot, stream, pace), kinds=KINDS,
                    goals={QEMU: 1}, skipped=dict(rows[0].skipped)))
    groups = [Group("longest pause of a writer, a full disk; QEMU's is "
                    "qemu-storage-daemon", rows,
                    lambda c: images.in_order(c.pool, path), disk=config.size * 4)]
    if not config.quick:
        groups.append(Group(
            "the same, a disk of 100G whose clusters are all allocated",
            rows_of(path, SHORT), lambda c: large_image(path), disk=4 * GiB))
    return groups
