# SPDX-License-Identifier: BSD-3-Clause
"""lab/cost, after what it needs is installed and built: see its opening comment.

callgrind says how often each instruction was executed, by its address in the file that
it comes from; objdump says which of them are locked, and which call the kernel.
"""

import argparse
import collections
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile

import nbd

LAB = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path += [os.path.join(LAB, "bench.d"), LAB]

import images
import servers
from images import MiB
from servers import BEFORE, LIMIT, PLUGIN

BLOCK, CLUSTER = 4096, 65536

# --- what is counted

COUNTS = ("instructions", "locked", "calls", "switches")


def read(h, i):
    h.pread(BLOCK, i % 1000 * CLUSTER)


def write(h, i):
    h.pwrite(b"\1" * BLOCK, i % 1000 * CLUSTER)


def flushed_write(h, i):
    write(h, i)
    h.flush()


def allocating_write(h, i):
    h.pwrite(b"\1" * BLOCK, i * CLUSTER)


# By name: what the client does, and whether the disk is full before.
ROWS = {
    "read 4K, all in memory": (read, True),
    "rewrite 4K": (write, True),
    "rewrite 4K, and flush": (flushed_write, True),
    "write 4K, empty image": (allocating_write, False),
}


class Config:
    """What bench's modules want to know."""

    def __init__(self, args, work):
        self.nbdkit = os.environ.get("NBDKIT", "nbdkit")
        self.plugin, self.before = args.plugin, args.before
        self.requests, self.threads = args.requests, args.threads
        self.cold, self.qemu_aio = False, "threads"
        self.sockets = self.work = work

    def path(self, name):
        return os.path.join(self.work, name)


class Server(servers.Server):
    """One with words before its command line."""

    def __init__(self, config, kind, image, *words):
        plugin = config.before if kind == BEFORE else config.plugin
        argv = [config.nbdkit, "-f", "-U", os.path.join(config.sockets, "sock")]
        if config.threads:
            argv += ["-t", str(config.threads)]
        argv += ["file" if kind == LIMIT else plugin, "file=" + image]
        super().__init__(config, LIMIT if kind == LIMIT else PLUGIN, image)
        self.argv = [*words, *argv]


def serve(server, work, n, counted):
    """Before the client leaves: what the server does then, for as long as it takes on a busy
    machine, is not what a request costs."""
    h = nbd.NBD()
    h.connect_uri(server.uri)
    for i in range(n):
        work(h, i)
    found = counted(server.process.pid)
    h.shutdown()
    return found


def switches(pid):
    total = 0
    for path in glob.glob("/proc/%d/task/*/status" % pid):
        with open(path, encoding="utf-8") as f:
            total += sum(map(int, re.findall(r"ctxt_switches:\s*(\d+)", f.read())))
    return total


# --- callgrind and objdump

def dump(pid):
    """So far; the rest goes to another file."""
    subprocess.run(["vgdb", "--pid=%d" % pid, "dump"], capture_output=True, check=True,
                   timeout=600)


def executed(path):
    """{object: {address: how often}}, from callgrind's file."""
    names, counts = {}, collections.defaultdict(collections.Counter)
    here, address, inclusive = None, 0, False
    with open(path, encoding="utf-8", errors="replace") as f:
        for line in f:
            m = re.match(r"ob=\((\d+)\)(?: (.*))?", line)
            if m:
                if m.group(2):
                    names[m.group(1)] = m.group(2)
                here = names[m.group(1)]
            elif m := re.match(r"cob=\((\d+)\) (.*)", line):
                names[m.group(1)] = m.group(2)
            elif line.startswith("calls="):
                # The next line is what the called function cost.
                inclusive = True
            elif m := re.match(r"(0x[0-9a-f]+|\+\d+|-\d+|\*) (?:\S+) (\d+)$", line):
                where = m.group(1)
                if where.startswith("0x"):
                    address = int(where, 16)
                elif where != "*":
                    address += int(where)
                if not inclusive:
                    counts[here][address] += int(m.group(2))
                inclusive = False
    return counts


_special = {}


def special(path):
    """Addresses of locked instructions, and of those that call the kernel."""
    if path not in _special:
        locked, calls, function = set(), set(), ""
        done = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path],
                              capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            if line.endswith(">:"):
                function = line
            # (Most lines of a large library are none of these.)
            if not ("lock" in line or "xchg" in line or "syscall" in line):
                continue
            m = re.match(r"\s*([0-9a-f]+):\s+(.*)", line)
            if not m:
                continue
            if re.match(r"lock\b|xchg\b.*\(", m.group(2)):
                locked.add(int(m.group(1), 16))
            # (Without valgrind, the time is asked for without a call.)
            elif m.group(2).startswith("syscall") and "clock_gettime" not in function:
                calls.add(int(m.group(1), 16))
        _special[path] = locked, calls
    return _special[path]


def totals(path):
    found = collections.Counter()
    for name, counts in executed(path).items():
        locked, calls = special(name) if name and os.path.exists(name) else ((), ())
        found["instructions"] += sum(counts.values())
        found["locked"] += sum(n for a, n in counts.items() if a in locked)
        found["calls"] += sum(n for a, n in counts.items() if a in calls)
    return found


# --- measuring

def image_of(config, kind, full):
    if full:
        return config.path("full.raw" if kind == LIMIT else "full.qcow2")
    path = config.path("empty")
    if os.path.exists(path):
        os.unlink(path)
    size = 2 * config.requests * CLUSTER
    if kind == LIMIT:
        images.empty_raw(path, size)
    else:
        images.empty_qcow2(path, size)
    return path


def count(config, kind, work, full, n):
    out = config.path("callgrind")
    with Server(config, kind, image_of(config, kind, full), "valgrind", "-q",
                "--tool=callgrind", "--dump-instr=yes",
                "--callgrind-out-file=" + out) as server:
        serve(server, work, n, dump)
    found = totals(out + ".1")
    with Server(config, kind, image_of(config, kind, full)) as server:
        found["switches"] = serve(server, work, n, switches)
    return found


def cost(config, kind, work, full):
    """Of one request, by COUNTS."""
    n = config.requests
    once, twice = (count(config, kind, work, full, i * n) for i in (1, 2))
    return {what: (twice[what] - once[what]) / n for what in COUNTS}


def run(config):
    kinds = [LIMIT, PLUGIN] + ([BEFORE] if config.before else [])
    labels = dict(servers.LABELS, **{LIMIT: "nbdkit file"})
    images.random_raw(config.path("full.raw"), 1000 * CLUSTER + MiB)
    images.in_order(config.path("full.raw"), config.path("full.qcow2"))
    print("%-26s %-12s" % ("", "") + "".join("%13s" % what for what in COUNTS))
    for name, (work, full) in ROWS.items():
        for kind in kinds:
            found = cost(config, kind, work, full)
            print("%-26s %-12s" % (name, labels[kind])
                  + "%13.0f" % found["instructions"]
                  + "".join("%13.1f" % found[what] for what in COUNTS[1:]), flush=True)


def positive(text):
    n = int(text)
    if not 0 < n < 1e6:
        raise ValueError(text)
    return n


def main():
    p = argparse.ArgumentParser(
        prog="lab/cost", add_help=False, allow_abbrev=False,
        usage="lab/cost [--plugin PATH] [--before PATH] [--requests N] [--threads N]")
    p.add_argument("--plugin", required=True)
    p.add_argument("--before")
    p.add_argument("--requests", type=positive, default=10000)
    p.add_argument("--threads", type=positive)
    args = p.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("cost: terminated"))
    # (Its name must be short: sockets are in it.)
    with tempfile.TemporaryDirectory(prefix="cost.", dir="/tmp") as work:
        try:
            run(Config(args, work))
        except (servers.ServerError, nbd.Error, OSError, subprocess.SubprocessError) as e:
            sys.exit("cost: %s" % e)


if __name__ == "__main__":
    main()
