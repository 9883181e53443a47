# SPDX-License-Identifier: BSD-3-Clause
"""What cases are made of: rows, in groups that share images; how a sample is taken."""

import glob
import mmap
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field

import machine
from servers import KINDS, LIMIT, PLUGIN, QEMU, Server, limit_files

MORE, LESS = "more", "less"


class Skip(Exception):
    """This can't be measured here; says why."""


@dataclass
class Sample:
    value: float
    rss: int = 0


@dataclass
class Row:
    """A line of the table."""
    name: str
    unit: str
    # Takes a sample: sample (config, kind) -> Sample.
    sample: object = None
    better: str = MORE
    kinds: tuple = KINDS
    # So many samples of each server in a round: for rows that differ more from sample
    # to sample than the servers do.
    often: int = 1
    # Ratios that the project wants, by the server that the plugin is compared with.
    goals: dict = field(default_factory=dict)
    # (plot, label of its x axis, x): this row is a point of a curve.
    curve: tuple = None
    # No samples of its own: the peak memory of that row's.
    rss_of: object = None
    # Also compare the plugin here with the plugin there; the ratio that is wanted.
    against: object = None
    against_goal: float = None
    # Why there are no samples, or not of all: by server, or "" for all of them.
    skipped: dict = field(default_factory=dict)
    samples: dict = field(default_factory=dict)
    # More than config.noise: what the reference differs from itself, as a ratio.
    noisy: float = None

    def add(self, kind, sample):
        self.samples.setdefault(kind, []).append(sample)


@dataclass
class Group:
    """Rows that use the same images.  These are made before and removed after."""
    title: str
    rows: list
    # prepare (config): makes the images.
    prepare: object = None
    # The most bytes that it has on disk, beside the pool.
    disk: int = 0
    # What else the plugin is compared with.
    reference: str = LIMIT


# --- taking samples

def read_anew(path, small=False):
    """So that all of it is in the page cache, and for all files in folios of the same
    size: in the largest that the kernel has, or of one page.  They depend on how a file
    was written, and make a tenth of the speed of large reads, and more of small writes
    (core/storage/folios.c)."""
    with open(path, "rb", buffering=0) as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if small:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        buffer = bytearray(1 << 20)
        while f.readinto(buffer):
            pass


def claim_memory(config, limit=1 << 30):
    """Before files are written.  A hypervisor may take back memory that a machine has not
    used for a while: then whoever comes next pays for getting it again, many times what
    the write itself takes."""
    size = min(config.size, limit)
    with mmap.mmap(-1, size) as memory:
        for offset in range(0, size, mmap.PAGESIZE):
            memory[offset] = 1


# What the host may have to write, and how long that is waited for.
DIRTY, PATIENCE = 32 << 20, 20


def settle(config):
    """Before each sample: what was written earlier does not disturb this one."""
    for directory, _, names in os.walk(config.work):
        for name in names:
            fd = os.open(os.path.join(directory, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    # What others write is not ours to sync.
    end = time.monotonic() + PATIENCE
    while machine.dirty() > DIRTY and time.monotonic() < end:
        time.sleep(0.1)
    if config.cold:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3")


def load(images, client, settings=None, warm=True, writes=None, rewrites=False,
         small=False):
    """A server, a client that loads it, its memory at the end.

    images: by server, or a function of the server's kind that makes or returns one.
    settings: more options for servers.Server.
    warm: read the image through before the first sample (unless cold); rewrites: before
    each, because a server may change how it is cached.  small: into small folios.
    writes: new parts of files (if not said: unless it is warm).
    """
    warmed = set()

    def sample(config, kind):
        image = images(kind) if callable(images) else images[kind]
        if warm and not config.cold and (rewrites or image not in warmed):
            # All layers of a chain: see images.chain.
            for path in [image] + glob.glob(glob.escape(image) + ".[0-9]*"):
                read_anew(path, small)
            warmed.add(image)
        settle(config)
        if (not warm if writes is None else writes) and not config.cold:
            claim_memory(config)
        with Server(config, kind, image, **(settings or {})) as server:
            value = client(server)
            return Sample(value, server.peak_rss())
    return sample


def start(images, client, settings=None):
    """The same for clients that measure a start."""
    def sample(config, kind):
        settle(config)
        with Server(config, kind, images[kind], wait=False,
                    **(settings or {})) as server:
            value = client(server)
            return Sample(value, server.peak_rss())
    return sample


def commands(argv, before=None):
    """Seconds that a command takes; argv (kind) -> its words; before (kind) prepares."""
    def sample(config, kind):
        if before:
            before(kind)
        settle(config)
        if not config.cold:
            claim_memory(config)
        began = time.monotonic()
        done = subprocess.run(argv(kind), capture_output=True, text=True,
                              preexec_fn=limit_files)
        seconds = time.monotonic() - began
        if done.returncode != 0:
            raise OSError("%s: %s" % (argv(kind)[0], done.stderr.strip()[-300:]))
        return Sample(seconds)
    return sample


def pair(raw, qcow2):
    """Images by server."""
    return {LIMIT: raw, QEMU: qcow2, PLUGIN: qcow2}


def free_bytes(directory):
    return shutil.disk_usage(directory).free
