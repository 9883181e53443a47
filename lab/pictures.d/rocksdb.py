# SPDX-License-Identifier: BSD-3-Clause
"""What does a database see of a long chain?  RocksDB reads from an ext4 filesystem on the
disk, through nbdfuse and a loop device.

db_bench reads past the page cache, and the loop device past that of nbdfuse: so each
block that is not in RocksDB's own cache is a read of the server, however long it goes on.
The filesystem is mounted read-only, because all servers share the images.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time

import clients
import images
import report
import rows
from draw import PUBLISHED, Bars, svg, triple
from images import MiB
from plots import COLOURS
from rows import LESS, Group, Row
from servers import KINDS, LABELS, PLUGIN, QEMU

NOTES = [
    "RocksDB reads random keys, values of 1000 bytes, in 4 threads; its cache holds an"
    " eighth of the database.  The filesystem is ext4, over a loop device over nbdfuse.",
    "Published (K. Nguetchouang et al., Virtual Disk Snapshot Management at Scale, 2022):"
    " over 500 layers, a changed format made RocksDB 1.48 times as fast as QEMU, with a"
    " fifteenth of the memory.  That was in a virtual machine; here the format is qcow2.",
]
PUBLISHED_SPEED, PUBLISHED_MEMORY = 1.48, 15
VALUE, THREADS = 1000, 4
PROGRAMS = ("db_bench", "nbdfuse", "fusermount3", "losetup", "mke2fs", "mount")


def missing(config):
    """Why this can't be measured here."""
    for program in PROGRAMS:
        if not shutil.which(program):
            return "needs the program " + program
    if os.geteuid() != 0:
        return "needs root, to mount a filesystem"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse"
    with tempfile.TemporaryDirectory(prefix="pictures.", dir=config.work) as directory:
        raw = os.path.join(directory, "raw")
        try:
            make_filesystem(raw, 4 * MiB)
            with mounted(raw, os.path.join(directory, "mnt")):
                pass
        except OSError as e:
            return "needs a loop device with a filesystem: %s" % e
    return None


# --- the filesystem

def make_filesystem(raw, size):
    images.empty_raw(raw, size)
    images.run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", raw)


@contextlib.contextmanager
def mounted(file, directory, *options):
    os.makedirs(directory, exist_ok=True)
    device = subprocess.run(["losetup", "--find", "--show", *options, file],
                            capture_output=True, text=True)
    if device.returncode != 0:
        raise OSError("losetup: " + device.stderr.strip())
    device = device.stdout.strip()
    try:
        images.run("mount", "-o", "ro" if "--read-only" in options else "rw", device,
                   directory)
        try:
            yield directory
        finally:
            images.run("umount", directory)
    finally:
        images.run("losetup", "--detach", device)


@contextlib.contextmanager
def fused(server):
    """The disk of a server, as a file."""
    directory = os.path.join(server.config.work, "fuse")
    os.makedirs(directory, exist_ok=True)
    file = os.path.join(directory, "disk")
    with subprocess.Popen(["nbdfuse", "--readonly", file, server.uri],
                          stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 60
            while not os.path.exists(file):
                server.check_alive()
                if process.poll() is not None or time.monotonic() > end:
                    raise clients.ClientError("nbdfuse did not start")
                time.sleep(0.01)
            yield file
        finally:
            # Also as long as the loop device, which has been given back, is not yet gone.
            for _ in range(500):
                if process.poll() is not None:
                    break
                subprocess.run(["fusermount3", "-u", directory], capture_output=True)
                time.sleep(0.02)
            else:
                process.kill()
                subprocess.run(["fusermount3", "-u", "-z", directory],
                               capture_output=True)


# --- the database

def db_bench(directory, size, *options):
    """SIZE: of the disk, half of which the database fills."""
    keys = size // 2 // (VALUE + 24)
    return ["db_bench", "--db=" + os.path.join(directory, "db"), "--key_size=16",
            "--value_size=%d" % VALUE, "--num=%d" % keys, "--compression_type=none",
            "--cache_size=%d" % (size // 16)] + list(options)


def make_database(raw, size, directory):
    make_filesystem(raw, size)
    with mounted(raw, directory) as mnt:
        images.run(*db_bench(mnt, size, "--disable_wal=1",
                             "--benchmarks=fillseq,compact"))


def random_reads(size, seconds):
    """Keys per second."""
    def client(server):
        mnt = os.path.join(server.config.work, "mnt")
        with fused(server) as file, \
             mounted(file, mnt, "--read-only", "--direct-io=on"):
            done = subprocess.run(
                db_bench(mnt, size, "--use_existing_db", "--readonly",
                         "--benchmarks=readrandom", "--use_direct_reads",
                         # Zero seconds would be without end: then a few keys.
                         "--duration=%d" % seconds if seconds >= 1 else "--reads=1000",
                         "--threads=%d" % THREADS,
                         "--ops_between_duration_checks=10"),
                capture_output=True, text=True, timeout=clients.HANGS)
        server.check_alive()
        found = re.search(r"^readrandom +: .*?(\d+) ops/sec.*\((\d+) of (\d+) found\)",
                          done.stdout, re.M)
        if done.returncode != 0 or not found or found.group(2) != found.group(3):
            raise clients.ClientError("db_bench: " + ((
                done.stderr.strip() or done.stdout.strip()).splitlines() or [""])[-1])
        return float(found.group(1))
    return client


# --- the picture

def groups(config):
    depths = [1, 20] if config.quick else [1, 500]
    size = config.size
    raw = config.path("database.raw")
    # Whole seconds: that is how db_bench counts.
    seconds = int(6 * config.seconds)
    made = []
    for depth in depths:
        top = config.path("database%d.qcow2" % depth)
        layers = "1 layer" if depth == 1 else "%d layers" % depth
        speed = Row("RocksDB over %s, random reads" % layers, "keys/s", rows.load(
            rows.pair(raw, top), random_reads(size, seconds)),
            curve=("speed", "layers", depth))
        made += [speed, Row("the same, peak memory of the server", "MiB", better=LESS,
                            curve=("memory", "layers", depth), rss_of=speed)]

    def prepare(config):
        make_database(raw, size, os.path.join(config.work, "mnt"))
        for depth in depths:
            images.chain(config, raw, config.path("database%d.qcow2" % depth), depth)
    # (Each layer has at least four clusters of its own.)
    return [Group("a database, a disk of %d MiB" % (size // MiB), made, prepare,
                  size * 3 + sum(depths) * 5 * 65536)]


def draw(groups, path):
    found = {what: [row for row in groups[0].rows if row.curve[0] == what]
             for what in ("speed", "memory")}
    depths = [row.curve[2] for row in found["speed"]]
    names = ["1 layer" if n == 1 else "%d layers" % n for n in depths]
    panels = [Bars(title, unit, names,
                   [(LABELS[kind], COLOURS[kind],
                     [triple(row, kind) for row in found[what]]) for kind in KINDS])
              for what, title, unit in (
                  ("speed", "Random reads of RocksDB", "keys per second"),
                  ("memory", "Memory of the server", "MiB"))]
    ratios = []
    for what in ("speed", "memory"):
        r = report.ratio(found[what][-1], QEMU)
        ratios.append(r and (r["median"], r["low"], r["high"]))
    panels.append(Bars("%s: against QEMU" % names[-1], "times better",
                       ["reads", "memory"],
                       [("this plugin, against qemu-nbd", COLOURS[PLUGIN], ratios),
                        ("published, against QEMU", PUBLISHED,
                         [(n, n, n) for n in (PUBLISHED_SPEED, PUBLISHED_MEMORY)])]))
    return svg(path, "RocksDB over a chain of layers", panels, columns=3, width=400,
               notes=NOTES)
