# SPDX-License-Identifier: BSD-3-Clause
"""What everybody has to do, on which disks.

All images are made by this machine's qemu-img.  A row is measured on the same image for
all, but on an empty one that each gets anew where clusters are allocated.
"""

import os
import subprocess
import zlib
from dataclasses import dataclass, field

import clients
import contestants
import images
import rows
from contestants import BACKING, COMPRESSIONS, WRITES
from images import MiB


@dataclass
class Disk:
    """The same bytes as a raw file and as qcow2."""
    raw: str
    # The layers, the lowest first.
    qcow2: list

    def files(self, contestant):
        return [self.raw] if contestant.raw else self.qcow2


@dataclass
class Row:
    name: str
    unit: str
    # take (config, row, contestant) -> a number, more is better.
    take: object
    # disk (contestant): makes or returns it.
    disk: object
    needs: frozenset = frozenset()
    # By a contestant's name: (value, the plugin's value in the same turn).
    samples: dict = field(default_factory=dict)
    # Equal servers differed by more than config.noise.
    noisy: bool = False
    # Why there are none, or no more, by name.
    skipped: dict = field(default_factory=dict)


@dataclass
class Group:
    """Rows that share images, which are made before and removed after."""
    rows: list
    prepare: object = None


# --- disks

class Disks:
    """Where the images of a group are, and how they are made."""

    def __init__(self, config, layers):
        self.config, self.layers = config, layers
        self.size = config.size
        # Of those that take long to make, or to read.
        self.small = max(config.size // 4, 4 * MiB)

    def full(self, contestant):
        return Disk(self.config.pool, [self.config.path("disk.qcow2")])

    def make_full(self, config):
        images.in_order(config.pool, config.path("disk.qcow2"))

    def empty(self, contestant):
        path = self.config.path("empty")
        if contestant.raw:
            images.empty_raw(path, self.size)
        else:
            images.empty_qcow2(path, self.size)
        return Disk(path, [path])

    def text(self, kind):
        return lambda contestant: Disk(self.config.path("text.raw"),
                                       [self.config.path(kind + ".qcow2")])

    def make_text(self, config):
        raw = config.path("text.raw")
        images.text_raw(raw, self.small)
        for kind in COMPRESSIONS:
            images.in_order(raw, config.path(kind + ".qcow2"), compression=kind)

    def chain(self, contestant):
        top = self.config.path("chain.qcow2")
        return Disk(self.config.path("chain.raw"),
                    ["%s.%d" % (top, i) for i in range(self.layers - 1)] + [top])

    def make_chain(self, config):
        raw = config.path("chain.raw")
        images.beginning(config.pool, raw, self.small)
        images.chain(config, raw, config.path("chain.qcow2"), self.layers)


# --- over NBD

PROBES = 64                     # places that are compared, for each server and image


def probe(server, raw):
    """A server that answers with other bytes is not fast."""
    size = os.path.getsize(raw)
    with open(raw, "rb") as f, contestants.connected(server.uri) as h:
        for i in range(PROBES):
            offset = size // PROBES * i & ~4095
            f.seek(offset)
            if h.pread(4096, offset) != f.read(4096):
                raise clients.ClientError("wrong bytes at offset %d" % offset)


def served(client, warm=True, changes=False, small=False):
    """A sample of a server; changes: the disk no longer has the bytes of its raw file, or
    will not have them; small: it is cached in small folios."""
    seen = set()

    def take(config, row, contestant):
        disk = row.disk(contestant)
        files = disk.files(contestant)
        for path in files if warm else ():
            if changes or path not in seen:
                rows.read_anew(path, small)
                seen.add(path)
        rows.settle(config)
        if not warm:
            rows.claim_memory(config)
        with contestants.Server(config, contestant, files) as server:
            if not changes and (contestant.name, files[-1]) not in seen:
                probe(server, disk.raw)
                seen.add((contestant.name, files[-1]))
            return client(server)
    return take


def nbd_groups(config):
    seconds = config.seconds
    d = Disks(config, 10 if config.quick else 100)

    def iops(name, rw, jobs, depth, disk, *needs, size=config.size, **how):
        return Row(name, "requests/s", served(clients.iops(
            rw, 4096, depth, size, jobs=jobs, seconds=seconds), **how), disk,
            frozenset(needs))

    def in_order(name, block, disk, *needs, size=config.size):
        return Row(name, "MiB/s", served(clients.bandwidth(
            "read", block, 4, size, seconds=seconds)), disk, frozenset(needs))

    compressed = []
    for kind in COMPRESSIONS:
        compressed += [
            in_order("read %s 64K in order, 1 x 4" % kind, 65536, d.text(kind), kind,
                     size=d.small),
            iops("random read %s 4K, 1 x 16" % kind, "randread", 1, 16, d.text(kind), kind,
                 size=d.small)]
    rewrites = [
        iops("random rewrite 4K, %d x 16%s" % (jobs, ", small folios" if small else ""),
             "randwrite", jobs, 16, d.full, WRITES, changes=True, small=small)
        for small in (False, True) for jobs in (1, 4)]
    # Rewrites come last: what they leave behind in the pool, nobody compares.
    return [
        Group([iops("random read 4K, 1 x 1", "randread", 1, 1, d.full),
               iops("random read 4K, 1 x 16", "randread", 1, 16, d.full),
               iops("random read 4K, 4 x 16", "randread", 4, 16, d.full),
               in_order("read 1M in order, 1 x 4", MiB, d.full),
               *rewrites], d.make_full),
        # As many as there are clusters, no place twice.
        Group([Row("random write 4K, empty image, 1 x 16", "requests/s", served(
            clients.iops("randwrite", 4096, 16, d.size, ios=max(d.size // 65536, 1)),
            warm=False, changes=True), d.empty, frozenset([WRITES]))]),
        Group(compressed, d.make_text),
        Group([iops("random read 4K over %d layers, 1 x 16" % d.layers, "randread", 1, 16,
                    d.chain, BACKING, size=d.small)], d.make_chain),
    ]


# --- in one process

def drive(config, contestant, files, *words):
    """Runs a driver; returns what it prints."""
    argv = contestant.command(files, None) + [str(w) for w in words]
    try:
        # There, names of backing files are right also for who takes them as they are.
        done = subprocess.run(argv, capture_output=True, text=True,
                              timeout=clients.HANGS, cwd=os.path.dirname(files[-1]))
    except subprocess.TimeoutExpired:
        raise clients.ClientError("it did not end") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise clients.ClientError((said or ["status %d" % done.returncode])[-1][-300:])
    return done.stdout.strip()


def checksum(path):
    crc = 0
    with open(path, "rb") as f:
        while piece := f.read(MiB):
            crc = zlib.crc32(piece, crc)
    return str(crc)


def driven(work, block, depth, changes=False):
    seen = set()

    def take(config, row, contestant):
        disk = row.disk(contestant)
        files = disk.files(contestant)
        for path in files:
            if changes or path not in seen:
                rows.read_anew(path)
                seen.add(path)
        if not changes and contestant.name not in seen:
            if drive(config, contestant, files, "crc", MiB, 1, 0) != checksum(disk.raw):
                raise clients.ClientError("wrong bytes")
            seen.add(contestant.name)
        rows.settle(config)
        value = float(drive(config, contestant, files, work, block, depth,
                            config.seconds))
        if changes:
            images.run("qemu-img", "check", "-q", "-f", "qcow2", files[-1])
        return value
    return take


def process_groups(config):
    d = Disks(config, 10)

    def row(name, disk, work, block, depth, *needs, **how):
        return Row("in process: " + name, "requests/s", driven(work, block, depth, **how),
                   disk, frozenset(needs))

    compressed = []
    for kind in COMPRESSIONS:
        compressed += [
            row("read %s 64K in order" % kind, d.text(kind), "read", 65536, 1, kind),
            row("random read %s 4K, 16" % kind, d.text(kind), "randread", 4096, 16, kind)]
    return [
        Group([row("random read 4K, 1", d.full, "randread", 4096, 1),
               row("random read 4K, 16", d.full, "randread", 4096, 16),
               row("read 64K in order", d.full, "read", 65536, 1),
               row("random rewrite 4K, 1", d.full, "randwrite", 4096, 1, WRITES,
                   changes=True),
               row("random rewrite 4K, 16", d.full, "randwrite", 4096, 16, WRITES,
                   changes=True)], d.make_full),
        Group(compressed, d.make_text),
        Group([row("random read 4K over %d layers, 16" % d.layers, d.chain, "randread",
                   4096, 16, BACKING)], d.make_chain),
    ]
