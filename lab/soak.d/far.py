# SPDX-License-Identifier: BSD-3-Clause
"""An image in an export of another nbdkit, which is killed and started again while 8
clients write; sometimes our server is killed."""

import os
import signal
import time

from disk import Disk
from image import Image
from load import Load
from model import Failure
from track import Track

CONNECTIONS = 8
ROOM = 64 << 20                 # the size of the export
LARGEST = 12 << 20


class Far(Track):
    name = "far"

    def live(self):
        rng = self.rng
        cluster = rng.choice((4096, 16384, 65536, 65536, 65536))
        extended = cluster >= 16384 and rng.random() < 0.4
        self.image = Image(self.directory, [{
            "driver": "qcow2", "name": "export", "options": {"cluster_size": cluster}}])
        with open(os.path.join(self.directory, "secret"), "w", encoding="utf-8"):
            pass
        size = 512 * rng.randint(1, LARGEST // 512)
        with open(self.image.path, "wb") as f:
            f.truncate(ROOM)
        self.disk = Disk(bytes(size))
        self.create = ["create=%d" % size, "cluster-size=%d" % cluster,
                       "extended-l2=%s" % ("true" if extended else "false")]
        self.parameters = [
            "lock=false", "reconnect=60",
            "checkpoint-interval=%d" % rng.choice((0, 1, 5)),
            "l2-cache=%d" % rng.choice((0, 65536, 32 << 20)),
            "detect-zeroes=" + rng.choice(("off", "unmap"))]
        self.start_far()
        rounds, begun = rng.randint(4, 8), self.requests.value
        try:
            for n in range(rounds):
                self.round = n
                self.one_round()
                if self.over():
                    break
            self.create = ["check=full"]
            self.serve_and_judge(0, None)
        finally:
            self.far.kill()
        return "%d lives, %d requests, %s" % (
            n + 1, self.requests.value - begun, " ".join(
                self.parameters + ["cluster-size=%d" % cluster] +
                ["extended-l2"] * extended))

    def start_far(self):
        # Whoever has sent requests and is killed can't send more.
        self.far = self.serve("far", "file", self.image.path)

    def restart_far(self):
        """In the middle of everything."""
        self.far.kill()
        time.sleep(self.rng.random() * self.rng.choice((0.02, 0.5)))
        self.start_far()
        self.count("storage killed")

    def one_round(self):
        self.serve_and_judge(self.rng.randint(100, 1200),
                             self.rng.choice(("kill", "storage", "calm", "calm", "both",
                                              "clean")))

    def lose_nothing(self, load, count):
        """While all is flushed, the storage may go and come back: no request fails."""
        for part in range(3):
            load.run(count // 3)
            load.flush()
            if part < 2:
                self.restart_far()
        self.count("storage killed, all went on")

    def serve_and_judge(self, count, ending):
        rng = self.rng
        server = self.start("file=" + self.far.uri(), *self.parameters, *self.create)
        self.create = []
        self.watch(server, [self.image.path])
        load = Load(server.uri(), CONNECTIONS, rng, self.disk, self.image.cluster, "zero",
                    self.requests)

        def kill_server():
            load.ending.set()
            server.signal(signal.SIGKILL)

        def kill_storage():
            load.storage_fails = True
            self.restart_far()

        events = []
        if ending in ("storage", "both"):
            events += [(rng.randint(1, count), kill_storage)
                       for _ in range(rng.randint(1, 2))]
        if ending in ("kill", "both"):
            events.append((rng.randint(1, count), kill_server))
        try:
            if ending == "calm":
                self.lose_nothing(load, count)
            else:
                load.run(count, events)
            load.close()
            if load.ending.is_set():
                server.kill()
                self.count("ended: kill")
            elif not server.stop(clean=not load.lost):
                self.count("aborts of nbdkit")
                load.lost = True
        finally:
            server.kill()
        if load.lost:
            self.count("storage killed, changes refused")
        crash = load.ending.is_set() or load.lost
        if crash:
            # What it had sent must not be carried out later.
            self.far.kill()
        what = "life %d: %s" % (self.round, "after a crash" if crash else
                                "after a clean end")
        self.image.check(what, leaks=crash)
        found = self.image.contents()
        if crash:
            self.disk.settle_crash(what, found)
            self.start_far()
        else:
            self.disk.settle_clean(what, found)
        self.count("images judged")
