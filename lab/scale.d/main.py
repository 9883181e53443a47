# SPDX-License-Identifier: BSD-3-Clause
"""Boots many guests from one golden image, and counts: see lab/scale.

The origin, the cache of the rack and the servers of the hosts are nbdkit processes.  Each
guest is a process that starts its server, as a host does, and replays the trace.  What
the servers read and use is what the kernel has counted for their processes (/proc/PID).
The origin calls read() twice for each request: for its header, and for the data.
"""

import argparse
import json
import mmap
import multiprocessing
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import nbd

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))

from common import Server, ServerFailure, proc, proc_numbers

CLUSTER = 65536
WAYS = {"plain": (False, False), "cor": (True, False), "rack": (False, True),
        "rack+cor": (True, True)}
MIB = 1 << 20
BOOT_SECONDS = 1800
HEADER = 28                     # bytes of an NBD request
TICKS = os.sysconf("SC_CLK_TCK")


class Failure(Exception):
    """What this program has to show is not so."""


# --- the trace and the golden image

class Trace:
    """The size of the disk, then on each line the offset and the length of a read, in
    units of 512 bytes.  Lines that begin with # say where it comes from."""

    def __init__(self, path, reads):
        numbers = []
        with open(path, encoding="utf-8") as f:
            for line in f:
                if not line.startswith("#"):
                    numbers.append([512 * int(x) for x in line.split()])
        (self.size,), *self.reads = numbers[:reads and reads + 1]
        self.bytes = sum(n for _, n in self.reads)

    def touched(self, unit):
        """The numbers of the pieces of this size that are read."""
        return sorted({i for at, n in self.reads
                       for i in range(at // unit, (at + n - 1) // unit + 1)})


def make_golden(trace, directory):
    """golden.qcow2, and its contents in golden.raw.  Not only what a guest reads is data,
    but what is near it too: a server may read more than its guest."""
    raw, qcow2 = (os.path.join(directory, "golden." + x) for x in ("raw", "qcow2"))
    with open(raw, "wb") as f:
        for i in trace.touched(MIB):
            f.seek(i * MIB)
            f.write(os.urandom(MIB))
        f.truncate(trace.size)
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, qcow2],
                   check=True)
    return raw, qcow2


# --- processes

def usage(pid):
    """What a process has used so far."""
    stat = proc(pid, "stat").rpartition(")")[2].split()
    status, io = proc_numbers(pid, "status"), proc_numbers(pid, "io")
    return {"cpu": (int(stat[11]) + int(stat[12])) / TICKS,
            "rss": status["VmHWM"] * 1024, "threads": status["Threads"],
            "fds": len(os.listdir("/proc/%d/fd" % pid)),
            "requests": io["syscr"] / 2,
            "read": io["rchar"] - HEADER * io["syscr"] / 2}


def start(config, name, *args):
    return Server(config.nbdkit, config.work, name, *args)


def stop(server):
    server.stop()
    if "error" in server.said():
        raise Failure(server.said())


def start_rack(config, origin):
    """Keeps what it has read from the origin, in a temporary file."""
    return start(config, "rack", "-t", str(config.threads), "--filter=cache", "nbd",
                 "uri=" + origin.uri(), "shared=true", "cache-on-read=true",
                 "cache-min-block-size=64K")


# --- guests

def replay(uri, trace, depth, raw, begun):
    """Reads the trace, DEPTH reads at a time.  Returns when the first one came."""
    h = nbd.NBD()
    h.connect_uri(uri)
    first, flying, todo = None, {}, iter(trace.reads)
    with open(raw, "rb") as f:
        expected = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    while True:
        while len(flying) < depth:
            read = next(todo, None)
            if read is None:
                break
            buf = nbd.Buffer(read[1])
            flying[h.aio_pread(buf, read[0])] = read, buf
        if not flying:
            break
        for cookie in list(flying):
            if h.aio_command_completed(cookie):
                (at, n), buf = flying.pop(cookie)
                first = first or time.monotonic() - begun
                if buf.to_bytearray() != expected[at:at + n]:
                    raise Failure("%d bytes at %d are not those of the golden image"
                                  % (n, at))
        if flying:
            h.poll(-1)
    h.shutdown()
    return first


def guest(config, trace, raw, args, name, barrier, results):
    """One host and its guest."""
    try:
        barrier.wait()
        begun = time.monotonic()
        server = start(config, name, *args)
        first = replay(server.uri(), trace, config.depth, raw, begun)
        result = {"first": first, "total": time.monotonic() - begun, **usage(server.pid)}
        barrier.wait()          # the origin is looked at while all are connected
        barrier.wait()
        stop(server)
        results.put((name, result))
    except threading.BrokenBarrierError:        # another guest has failed
        results.put((name, None))
    except Exception as e:
        barrier.abort()
        results.put((name, "%s: %s" % (name, e)))


def boot(config, trace, raw, behind, origin, overlay_args):
    """All guests boot at the same time.  What the servers have used."""
    barrier = multiprocessing.Barrier(config.servers + 1, timeout=BOOT_SECONDS)
    results = multiprocessing.Queue()
    before = usage(origin.pid)
    guests = [multiprocessing.Process(target=guest, args=(
        config, trace, raw, overlay_args(i), "host%d" % i, barrier, results))
        for i in range(config.servers)]
    for g in guests:
        g.start()
    try:
        barrier.wait()
        barrier.wait()
        used = usage(origin.pid)
        rack = usage(behind.pid) if behind is not origin else None
        barrier.wait()
    except threading.BrokenBarrierError:        # a guest has failed, and tells why
        used, rack = before, None
    hosts = [results.get(timeout=BOOT_SECONDS)[1] for _ in guests]
    for g in guests:
        g.join()
    if not all(isinstance(h, dict) for h in hosts):
        raise Failure("\n".join(h for h in hosts if isinstance(h, str)))
    for key in ("read", "requests", "cpu"):
        used[key] -= before[key]
    return {"origin": used, "rack": rack, "hosts": hosts}


def overlay(config, i):
    return os.path.join(config.work, "overlay%d.qcow2" % i)


def measure(config, trace, raw, qcow2, way):
    """The first and the second boot."""
    copying, racked = WAYS[way]
    origin = start(config, "origin", "-r", "-t", str(config.threads), "file", qcow2)
    behind = start_rack(config, origin) if racked else origin
    create = ["create=auto", "backing-file=" + behind.uri(), "backing-format=qcow2",
              *filter(None, config.create.split(","))]
    boots = []
    for first in (True, False):
        boots.append(boot(config, trace, raw, behind, origin, lambda i: [
            config.plugin, "file=" + overlay(config, i), "allow-uri=" + behind.uri(),
            "copy-on-read=" + ("true" if copying else "false"),
            *(create if first else [])]))
        boots[-1]["overlays"] = [os.stat(overlay(config, i)).st_blocks * 512
                                 for i in range(config.servers)]
    for i in range(config.servers):
        subprocess.run(["qemu-img", "check", "-q", overlay(config, i)], check=True)
        os.unlink(overlay(config, i))
    if behind is not origin:
        stop(behind)
    stop(origin)
    return boots


# --- results

def server_cells(used, n):
    """Of a server of N hosts."""
    return ["%.1f" % (used["read"] / MIB / n), "%.0f" % (used["requests"] / n),
            "%.0f" % (1000 * used["cpu"] / n), "%.0f" % (used["rss"] / MIB),
            "%d" % used["fds"], "%d" % used["threads"]]


def row(name, boot):
    hosts = boot["hosts"]

    def middle(key, scale=1):
        return "%.0f" % (statistics.median(h[key] for h in hosts) / scale)

    return [name, *server_cells(boot["origin"], len(hosts)),
            middle("cpu", 0.001), middle("rss", MIB), middle("fds"), middle("threads"),
            middle("first", 0.001), "%.1f" % max(h["total"] for h in hosts),
            "%.1f" % (statistics.median(boot["overlays"]) / MIB)]


TITLES = [["", "origin,", "per host:", "", "all:", "", "", "host:", "", "", "", "first",
           "slowest", ""],
          ["", "", "", "CPU", "RSS", "", "", "CPU", "RSS", "", "", "read", "guest",
           "overlay"],
          ["", "MiB", "requests", "ms", "MiB", "files", "threads", "ms", "MiB", "files",
           "threads", "ms", "s", "MiB"]]


def table(rows):
    rows = TITLES + rows
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join([r[0].ljust(widths[0])] + [
        x.rjust(w) for x, w in zip(r[1:], widths[1:])]).rstrip() for r in rows)


def parse():
    p = argparse.ArgumentParser(prog="scale", allow_abbrev=False)
    p.add_argument("--servers", type=int, default=64)
    p.add_argument("--reads", type=int)
    p.add_argument("--trace", default=os.path.join(HERE, "boot.trace"))
    p.add_argument("--depth", type=int, default=4)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--ways", default=",".join(WAYS))
    p.add_argument("--create", default="")
    p.add_argument("--plugin", required=True)
    p.add_argument("--work")
    p.add_argument("--json")
    config = p.parse_args()
    config.ways = config.ways.split(",")
    for way in config.ways:
        if way not in WAYS:
            p.error("--ways: not %s: %s" % (",".join(WAYS), way))
    for option in "servers", "depth", "threads":
        if getattr(config, option) < 1:
            p.error("--%s must be at least 1" % option)
    config.nbdkit = os.environ.get("NBDKIT", "nbdkit")
    return config


def main():
    # Children get what cannot be sent, such as locks and open files.
    multiprocessing.set_start_method("fork")
    config = parse()
    trace = Trace(config.trace, config.reads)
    if config.work:
        os.mkdir(config.work)
    else:
        config.work = tempfile.mkdtemp(prefix="scale.")
    config.work = os.path.realpath(config.work)
    try:
        clusters = len(trace.touched(CLUSTER))
        print("%d guests; each makes %d reads of %.1f MiB, in %d clusters of 64K "
              "(%.1f MiB)" % (config.servers, len(trace.reads), trace.bytes / MIB,
                              clusters, clusters * CLUSTER / MIB), flush=True)
        raw, qcow2 = make_golden(trace, config.work)
        results, rows = {}, []
        for way in config.ways:
            results[way] = measure(config, trace, raw, qcow2, way)
            rows += [row("%s, boot %d" % (way, n), b)
                     for n, b in enumerate(results[way], 1)]
        print(table(rows))
        for way, boots in results.items():
            if boots[0]["rack"]:
                print("%s: the cache of the rack: %s" % (way, ", ".join(
                    "%s %s" % x for x in zip(
                        server_cells(boots[0]["rack"], config.servers)[2:],
                        ("ms of CPU for each host", "MiB of RSS", "files", "threads")))))
        if config.json:
            with open(config.json, "w", encoding="utf-8") as f:
                json.dump({"servers": config.servers, "reads": len(trace.reads),
                           "bytes": trace.bytes, "clusters": clusters,
                           "ways": results}, f, indent=1)
    except (Failure, ServerFailure, OSError, ValueError, queue.Empty, nbd.Error,
            subprocess.CalledProcessError) as e:
        print("scale: %s" % e, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(config.work)
    return 0


sys.exit(main())
