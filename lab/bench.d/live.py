# SPDX-License-Identifier: BSD-3-Clause
"""What clients notice while a disk is changed: the longest time between two answers to
one that writes, in a loop, from before a command until after it.  QEMU's server is
qemu-storage-daemon here; the same commands go to both."""

import json
import os
import shutil
import socket
import subprocess
import threading
import time

import nbd

import images
from rows import LESS, Group, Row, Sample, settle
from servers import PLUGIN, QEMU, Server

BLOCK = 4096
KINDS = (QEMU, PLUGIN)


class Live(Server):
    """One that can be controlled; its node is node0, its device disk."""

    def __init__(self, config, kind, image):
        super().__init__(config, kind, image)
        self.control = os.path.join(config.sockets, "qmp")
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

    def __init__(self, server):
        self.handle = nbd.NBD()
        self.handle.connect_uri(server.uri)
        self.stop, self.longest, self.error = threading.Event(), 0, None
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        data, size = os.urandom(BLOCK), self.handle.get_size()
        at, last = 0, time.monotonic()
        try:
            while not self.stop.is_set():
                self.handle.pwrite(data, at)
                # Another cluster, and another table, each time.
                at = (at + (65536 * 7919)) % size
                now = time.monotonic()
                self.longest, last = max(self.longest, now - last), now
        except nbd.Error as e:
            self.error = e

    def __enter__(self):
        self.thread.start()
        time.sleep(0.1)
        self.longest = 0
        return self

    def __exit__(self, *exception):
        time.sleep(0.1)
        self.stop.set()
        self.thread.join()
        self.handle.shutdown()
        if self.error:
            raise self.error


def pause(path, before, change):
    """Milliseconds; BEFORE and CHANGE are given the server."""
    def sample(config, kind):
        image = images.fresh_copy(path, config.path("live.qcow2"))
        for name in "new.qcow2", "target.qcow2":
            if os.path.exists(config.path(name)):
                os.unlink(config.path(name))
        settle(config)
        with Live(config, kind, image) as server:
            before(server)
            with Writer(server) as writer:
                change(server)
            return Sample(writer.longest * 1000, server.peak_rss())
    return sample


def nothing(server):
    pass


def external_snapshot(server):
    server.tell("blockdev-snapshot-sync", node_name="node0", format="qcow2",
                snapshot_file=server.config.path("new.qcow2"), snapshot_node_name="new")


def internal_snapshot(server):
    server.tell("blockdev-snapshot-internal-sync", device="node0", name="now")


def delete_snapshot(server):
    server.tell("blockdev-snapshot-delete-internal-sync", device="node0", name="now")


def add_bitmap(server):
    server.tell("block-dirty-bitmap-add", node="node0", name="b", persistent=True)


def stream(server):
    server.tell("block-stream", device="new", job_id="j")
    server.await_event("BLOCK_JOB_COMPLETED")


def add_target(server):
    target = server.config.path("target.qcow2")
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", target,
                    str(server.config.size)], check=True)
    server.tell("blockdev-add", driver="qcow2", node_name="target",
                file={"driver": "file", "filename": target})


def mirror(server):
    server.tell("blockdev-mirror", device="node0", job_id="j", target="target",
                sync="full")


def live(config):
    path = config.path("full.qcow2")
    rows = [Row(name, "ms", pause(path, before, change), better=LESS, kinds=KINDS,
                goals={QEMU: 1})
            for name, before, change in (
                ("nothing", nothing, nothing),
                ("a bitmap is added", nothing, add_bitmap),
                ("external snapshot", nothing, external_snapshot),
                ("internal snapshot", nothing, internal_snapshot),
                ("internal snapshot, deleted", internal_snapshot, delete_snapshot),
                ("stream", external_snapshot, stream),
                ("mirror, its start", add_target, mirror))]
    if not shutil.which("qemu-storage-daemon"):
        for row in rows:
            row.skipped[QEMU] = "needs qemu-storage-daemon"
    return [Group("longest pause of a writer, a full disk; QEMU's is qemu-storage-daemon",
                  rows, lambda c: images.in_order(c.pool, path), disk=config.size * 4)]
