# SPDX-License-Identifier: BSD-3-Clause
"""A directory of images, served by one server that lives as long as the run: this is the
one that shows whether memory, descriptors or files grow.  Each image has a process of
its own with two clients, which come, write and go.  While nobody uses an image QEMU
judges it, and another nbdkit changes it.  At the end the server is killed."""

import multiprocessing
import os
import queue
import random
import time

import nbd

from disk import Disk
from image import Image
from load import Load, Reader
from model import Failure
from track import Track, explain

KINDS = (
    ["cluster-size=64K"],
    ["cluster-size=4K", "lazy-refcounts=true"],
    ["cluster-size=32K", "extended-l2=true", "refcount-bits=64"],
    ["cluster-size=64K", "encrypt=luks", "iter-time=10"],
)
CLUSTERS = (65536, 4096, 32768, 65536)
CONNECTIONS = 2                 # for each image: 8 in all
SIZE = 12 << 20
PASSPHRASE = "open sesame"


class Room:
    """One image of the directory."""

    def __init__(self, house, i):
        self.house, self.i = house, i
        self.name = "disk%d.qcow2" % i
        self.rng = random.Random("%d:%d" % (house.seed, i))
        layer = {"driver": "qcow2", "name": os.path.join("disks", self.name),
                 "options": {"cluster_size": CLUSTERS[i]}}
        if "encrypt=luks" in KINDS[i]:
            layer["encrypt"] = "luks"
        self.image = Image(house.directory, [layer])
        self.disk = Disk(bytes(SIZE - 512 * self.rng.randrange(100)))
        self.snapshots = {}
        self.counts = {}

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def nbdkit(self, *parameters):
        """Before serving: while the house runs, but has not opened this image."""
        self.house.serve("edit%d" % self.i, self.house.config.plugin,
                         "file=" + self.image.path, "passphrase=" + PASSPHRASE,
                         *parameters).stop()

    def create(self):
        self.nbdkit("create=%d" % len(self.disk.now), *KINDS[self.i])

    def edit(self):
        rng = self.rng
        what = rng.choice(("", "", "create", "delete", "resize", "check"))
        if what == "create" and len(self.snapshots) < 3:
            new = "s%d" % rng.getrandbits(30)
            self.nbdkit("snapshot-create=" + new)
            self.snapshots[new] = bytes(self.disk.now)
        elif what == "delete" and self.snapshots:
            old = rng.choice(sorted(self.snapshots))
            self.nbdkit("snapshot-delete=" + old)
            del self.snapshots[old]
        elif what == "resize":
            size = SIZE - 512 * rng.randrange(2000)
            self.nbdkit("resize=%d" % size, "shrink=true")
            self.disk.resize(size)
        elif what == "check":
            self.nbdkit("check=full")
        else:
            return
        self.count({"check": "check=full", "resize": "resize"}.get(
            what, "snapshot-" + what))

    def serve(self):
        """Clients come, and go; or see the end of the server."""
        house, rng = self.house, self.rng
        ending = house.ending
        load = Load(house.server.uri(self.name), CONNECTIONS, rng, self.disk,
                    self.image.cluster, "zero", house.requests, ending)
        exports = [("%s/%s" % (self.name, n), c) for n, c in self.snapshots.items()]
        exports.append((self.name + "/layer:0", None))
        reader = Reader(house.server, exports, random.Random(rng.random()), self.counts)
        reader.start()
        load.run(rng.randint(200, 2000))
        reader.finish(ending=ending.is_set())
        if not ending.is_set():
            load.close()

    def await_closed(self):
        """The server closes the image soon after its last client has gone."""
        limit = time.monotonic() + 60
        while self.image.qemu_img("info", self.image.node()).returncode != 0:
            if time.monotonic() > limit:
                raise Failure("%s stays open though nobody uses it" % self.name)
            time.sleep(0.02)

    def judge(self, crash):
        what = "after a crash" if crash else "closed"
        self.image.check(what, leaks=crash)
        found = self.image.contents()
        if crash:
            self.disk.settle_crash(what, found)
        else:
            self.disk.settle_clean(what, found)
        for name in self.snapshots:
            if not self.image.has_snapshot(name, self.snapshots[name]):
                raise Failure("%s: snapshot %s has changed" % (what, name))
            self.count("snapshots judged")
        self.count("images judged")

    def live(self):
        """Until the server is killed."""
        ending = self.house.ending
        while not ending.is_set():
            try:
                self.serve()
            except (ConnectionError, nbd.Error):
                if not ending.is_set():
                    raise
            if not ending.is_set():
                self.await_closed()
                self.judge(crash=False)
                self.edit()
        self.house.dead.wait()
        self.judge(crash=True)
        self.house.last_writer("last%d" % self.i, "file=" + self.image.path,
                               "passphrase=" + PASSPHRASE)
        self.judge(crash=False)

    def process(self):
        try:
            self.live()
            self.house.reports.put(self.counts)
        except (Exception, SystemExit) as e:
            self.house.reports.put("%s: %s" % (self.name, explain(e)))


class House(Track):
    name = "house"

    def live(self):
        self.seed = self.rng.getrandbits(64)
        os.mkdir(os.path.join(self.directory, "disks"))
        with open(os.path.join(self.directory, "secret"), "w", encoding="utf-8") as f:
            f.write(PASSPHRASE)
        self.ending, self.dead = multiprocessing.Event(), multiprocessing.Event()
        self.reports = multiprocessing.Queue()
        rooms = [Room(self, i) for i in range(len(KINDS))]
        for room in rooms:
            room.create()
        begun = self.requests.value
        self.server = self.start(
            "dir=" + os.path.join(self.directory, "disks"), "l2-cache=1M",
            "passphrase=" + PASSPHRASE, "checkpoint-interval=1",
            "stats=" + os.path.join(self.directory, "stats.json"))
        self.watch(self.server, [room.image.path for room in rooms])
        processes = [multiprocessing.Process(target=room.process) for room in rooms]
        for p in processes:
            p.start()
        try:
            early = self.report_until_over()
            self.ending.set()
            self.server.kill()
            self.dead.set()
            for report in early + [self.reports.get() for _ in processes[len(early):]]:
                if isinstance(report, str):
                    raise Failure(report)
                for what, n in report.items():
                    self.count(what, n)
        finally:
            self.server.kill()
            for p in processes:
                p.kill()
                p.join()
        self.count("ended: kill")
        return "%d images, %d requests" % (len(rooms), self.requests.value - begun)

    def report_until_over(self):
        """Before the time is over there is no report but of a failure."""
        while not self.over():
            try:
                return [self.reports.get(timeout=0.2)]
            except queue.Empty:
                if self.server.process.poll() is not None:
                    return ["the server has ended: " + self.server.said()]
        return []
