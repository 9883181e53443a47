# SPDX-License-Identifier: BSD-3-Clause
#
# Backups, and a model of the disk at each instant.
#
#   log = Log(HANDLE...)            one writer, that writes to all of them in turn; start, stop
#   log.instant(PATH..., least=N)   the images show what they were after the same write (but
#                                   for one), at least the Nth; returns the number of each
#   log.clusters(N, M)              how many clusters of 64K have writes N+1 to M changed?
#   b = Backups(IMG, REPOSITORY)    its generations, and the model of each
#   b.note(MODEL)                   what is new was made when the disk was MODEL (bytes)
#   b.judge()                       restores all, and compares, and the checksums are right
#
# Writes of a Log cover whole blocks, and say which they are: the number, again and again.  From
# one start to the next they are in one eighth of the disk, so that most of it does not change.

import json
import os
import random
import subprocess
import threading

BLOCK = 4096
CLUSTER = 65536


def block(number):
    return number.to_bytes(8, "little") * (BLOCK // 8)


class Log:
    def __init__(self, *handles):
        self.handles = handles
        self.blocks = handles[0].get_size() // BLOCK
        self.area = range(self.blocks)
        self.places = [0]       # where the write was; there is none of number 0
        self.stopping = threading.Event()
        self.error = None

    def write(self, n=1):
        for _ in range(n):
            number = len(self.places)
            at = random.choice(self.area)
            self.places.append(at)
            for h in self.handles:
                h.pwrite(block(number), at * BLOCK)

    def run(self):
        try:
            while not self.stopping.is_set():
                self.write()
        except Exception as e:
            self.error = e

    def start(self):
        part = self.blocks // 8
        first = random.randrange(self.blocks - part)
        self.area = range(first, first + part)
        self.stopping.clear()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def stop(self):
        self.stopping.set()
        self.thread.join()
        assert self.error is None, self.error

    def after(self, number):
        """The disk after the write of that number."""
        data = bytearray(self.blocks * BLOCK)
        for n in range(1, number + 1):
            at = self.places[n] * BLOCK
            data[at:at + BLOCK] = block(n)
        return data

    def instant(self, *paths, least):
        numbers = []
        for path in paths:
            with open(path, "rb") as f:
                data = f.read()
            number = max(int.from_bytes(data[at:at + 8], "little")
                         for at in range(0, len(data), BLOCK))
            assert data == self.after(number), path
            numbers.append(number)
        assert min(numbers) >= least and max(numbers) - min(numbers) <= 1, numbers
        return numbers

    def clusters(self, first, last):
        return len({at * BLOCK // CLUSTER for at in self.places[first + 1:last + 1]})


class Backups:
    def __init__(self, img, repository):
        self.img, self.repository = img, repository
        self.models = {}

    def list(self):
        if not os.path.exists(self.repository + "/manifest.json"):
            return []
        return json.loads(subprocess.check_output(
            [self.img, "restore", "--list", "--output=json", self.repository]))

    def note(self, model):
        found = self.list()
        for g in found:
            self.models.setdefault(g["number"], bytes(model))
        return found[-1] if found else None

    def judge(self):
        """QEMU reads the files as they are, and restore makes the same of them."""
        for g in self.list():
            with open("model.raw", "wb") as f:
                f.write(self.models[g["number"]])
            file = self.repository + "/" + g["file"]
            subprocess.check_call(["qemu-img", "compare", "-q", "-f", file.rpartition(".")[2],
                                   "-F", "raw", file, "model.raw"])
            if file.endswith(".qcow2"):
                subprocess.check_call(["qemu-img", "check", "-q", file])
            subprocess.check_call([self.img, "restore", "-q", "-g", str(g["number"]),
                                   self.repository, "restored.raw"])
            with open("restored.raw", "rb") as f:
                assert f.read() == self.models[g["number"]], g
        if self.list():
            subprocess.check_call([self.img, "restore", "-q", "--verify", self.repository])
