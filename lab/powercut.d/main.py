# SPDX-License-Identifier: BSD-3-Clause
"""Runs workloads against servers whose writes are recorded: see lab/powercut.

Each round has a directory: the image before and after, the journal, and what the judge
says.  The programs are in tests/powercut.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

import nbd

DISK = 8 << 20
START_SECONDS = 120             # on a busy machine
PERSON_SECONDS = 600            # who starts or stops a server
FAULTS = "lost", "snapshot", "older", "foreign", "torn", "trimmed"
SUMS = ("cuts", "qemu", "corrupt", "corrupt_later", "suspect", "behind", "leaks",
        "entries")


class Failure(Exception):
    """It cannot be said what the server would have left."""


@dataclass
class Workload:
    """WEIGHTS: as load.c has them.  CLUSTERS: cluster sizes, one for each round."""
    what: str
    weights: str
    clusters: tuple = ("64K", "4K", "16K", "512")
    pattern: str = "random"
    longest: int = 65536
    connections: int = 1
    options: str = ""
    compressed: bool = False
    snapshot: bool = False


WORKLOADS = {
    "database": Workload("a log that is flushed, pages that change in place",
                         "1,0,0,1,0", pattern="database"),
    "no-flush": Workload("writes, zeros and trims, and never a flush", "10,4,2,0,0"),
    "subclusters": Workload("small requests, extended L2 entries", "12,4,2,3,5",
                            ("64K", "16K", "128K", "32K"), longest=8192,
                            options="extended_l2=on"),
    "snapshots": Workload("an internal snapshot shares the clusters", "10,3,2,3,5",
                          snapshot=True),
    "trim": Workload("trims and zeros, then writes elsewhere", "6,4,5,1,2"),
    "compressed": Workload("compressed clusters are overwritten", "10,2,1,3,5",
                           ("64K", "4K", "16K"), compressed=True),
    "connections": Workload("four connections, whose requests share clusters",
                            "10,4,2,3,5", connections=4),
}


# --- servers

@dataclass
class Round:
    """One workload on one server."""
    config: object
    workload: Workload
    directory: str
    seed: int
    cluster: str
    env: dict = field(default_factory=dict)

    def path(self, name):
        return os.path.join(self.directory, name)

    def program(self, name, *args, **more):
        return subprocess.run([os.path.join(self.config.programs, name), *map(str, args)],
                              cwd=self.directory, check=False, text=True, **more)


class Started:
    """A server that this program starts and stops."""

    def __init__(self, round_, command):
        self.log, pidfile = round_.path("server.log"), round_.path("pid")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command(pidfile), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log,
                                            env={**os.environ, **round_.env})
        try:
            self.await_start(pidfile)
        except BaseException:
            self.kill()
            raise

    def await_start(self, pidfile):
        deadline = time.monotonic() + START_SECONDS
        while not os.path.exists(pidfile) or os.path.getsize(pidfile) == 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failure("the server does not start: " + self.said())
            time.sleep(0.005)

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read().strip()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self):
        self.process.terminate()
        if self.process.wait() != 0:
            raise Failure("the server has failed: %s" % (
                self.said() or "status %d" % self.process.returncode))


def start_plugin(round_, args, sock):
    config = round_.config
    # Options of nbdkit are before the first NAME=VALUE.
    first = next((i for i, a in enumerate(args) if a[0] != "-" and "=" in a), len(args))
    options, parameters = args[:first], args[first:]
    return Started(round_, lambda pidfile: [
        config.nbdkit, "-f", "--exit-with-parent", "-U", sock, "-P", pidfile, *options,
        config.plugin, "file=" + round_.path("disk.qcow2"), *parameters])


def start_qemu_nbd(round_, args, sock):
    if not any(a.startswith("--aio") for a in args):
        args = ["--aio=threads", *args]
    return Started(round_, lambda pidfile: [
        "qemu-nbd", "-f", "qcow2", "-k", sock, "--pid-file", pidfile, "-t", "-e", "16",
        "--discard=unmap", *args, round_.path("disk.qcow2")])


class Foreign:
    """A server that a person, or another program, starts and stops."""

    def __init__(self, round_, uri):
        self.uri = uri
        print("\nStart your server on this file, for %s, with this environment:\n\n"
              "  %s\n  %s\n\nWaiting until it answers." % (
                  uri, round_.path("disk.qcow2"),
                  " ".join("%s=%s" % v for v in round_.env.items())), flush=True)
        self.wait(True, "start")

    def answers(self):
        h = nbd.NBD()
        h.set_opt_mode(True)
        try:
            h.connect_uri(self.uri)
            h.opt_abort()
            return True
        except nbd.Error:
            return False

    def wait(self, answers, what):
        deadline = time.monotonic() + PERSON_SECONDS
        while self.answers() != answers:
            if time.monotonic() > deadline:
                raise Failure("nobody has made %s %s" % (self.uri, what))
            time.sleep(0.1)

    def kill(self):
        pass

    def stop(self):
        print("Stop it now.  Waiting until %s no longer answers." % self.uri, flush=True)
        self.wait(False, "stop")


class Server:
    """What --server says."""

    def __init__(self, text):
        self.name = text
        kind, *self.args = shlex.split(text) or [""]
        self.start_own = {"plugin": start_plugin, "qemu-nbd": start_qemu_nbd}.get(kind)
        if self.start_own is None and (self.args or ":" not in kind):
            raise ValueError("neither plugin, qemu-nbd, nor a URI: " + text)

    def start(self, round_, sock):
        """The server, and its URI."""
        if self.start_own is None:
            return Foreign(round_, self.name), self.name
        return (self.start_own(round_, self.args, sock),
                "nbd+unix:///?socket=" + sock)


# --- rounds

def make_image(round_):
    """Half of the disk contains data."""
    work, raw = round_.workload, round_.path("fill.raw")
    image = round_.path("before.qcow2")
    round_.program("load", "--fill", raw, DISK // 2).check_returncode()
    os.truncate(raw, DISK)
    options = ",".join(filter(None, ["cluster_size=" + round_.cluster, work.options]))
    subprocess.run(["qemu-img", "convert", *(["-c"] if work.compressed else []), "-f",
                    "raw", "-O", "qcow2", "-o", options, raw, image], check=True)
    os.unlink(raw)
    if work.snapshot:
        subprocess.run(["qemu-img", "snapshot", "-c", "before", image], check=True)


def size(text):
    return int(text[:-1]) << 10 if text.endswith("K") else int(text)


def record(round_, server, sock):
    config, work = round_.config, round_.workload
    journal = round_.path("journal")
    with open(journal, "wb"):
        pass
    shutil.copyfile(round_.path("before.qcow2"), round_.path("disk.qcow2"))
    round_.env = {"LD_PRELOAD": os.path.join(config.programs, ".libs", "record.so"),
                  "POWERCUT_IMAGE": round_.path("disk.qcow2"),
                  "POWERCUT_JOURNAL": journal}
    running, uri = server.start(round_, sock)
    try:
        load = round_.program("load", uri, journal, round_.seed, config.requests,
                              work.connections, size(round_.cluster), work.longest,
                              work.pattern, work.weights, stderr=subprocess.PIPE)
        if load.returncode != 0:
            raise Failure(load.stderr.strip())
        running.stop()
    finally:
        running.kill()


def judge(round_):
    config = round_.config
    with open(round_.path("findings"), "w", encoding="utf-8") as findings:
        done = round_.program("judge", "journal", "before.qcow2", "disk.qcow2",
                              round_.seed, config.cuts, config.asked,
                              stdout=subprocess.PIPE, stderr=findings)
    if done.returncode != 0:
        with open(round_.path("findings"), encoding="utf-8") as f:
            raise Failure(f.read().strip().rpartition("\n")[2])
    return json.loads(done.stdout)


def add(total, counts):
    for key in SUMS:
        total[key] = total.get(key, 0) + counts[key]
    for key in FAULTS:
        total[key] = [a + b for a, b in zip(total.get(key, [0, 0]), counts[key])]
    total["most_leaks"] = max(total.get("most_leaks", 0), counts["most_leaks"])


def run(config, sockets):
    """The counts: workload -> server -> counts."""
    results = {}
    for name in config.workloads:
        work = WORKLOADS[name]
        results[name] = {server.name: {} for server in config.servers}
        for i in range(config.rounds):
            seed = random.Random("%d %s %d" % (config.seed, name, i)).getrandbits(32)
            for k, server in enumerate(config.servers):
                directory = os.path.join(config.work, "%s.%d.%d" % (name, i, k))
                os.mkdir(directory)
                round_ = Round(config, work, directory, seed,
                               work.clusters[i % len(work.clusters)])
                try:
                    make_image(round_)
                    record(round_, server, os.path.join(sockets, "%s%d%d" % (name, i, k)))
                    add(results[name][server.name], judge(round_))
                except Failure as e:
                    raise Failure("%s, round %d, %s: %s" % (
                        name, i + 1, server.name, e)) from e
                if not config.keep:
                    shutil.rmtree(directory)
    return results


# --- results

TITLES = ["workload", "server", "cuts", "lost", "snap", "corrupt", "older", "foreign",
          "torn", "trim", "behind", "leaks"]
VIOLATIONS, OTHERS = TITLES.index("lost"), TITLES.index("older")


def row(name, server, c):
    def sectors(key):
        return "%d/%d" % tuple(c[key]) if c[key][1] else "0"

    return [name, server, "%d" % c["cuts"], sectors("lost"), sectors("snapshot"),
            "%d" % (c["corrupt"] + c["corrupt_later"]), *map(sectors, FAULTS[2:]),
            "%.0f" % (c["behind"] / 2 / c["cuts"]), "%.0f" % (c["most_leaks"] / 1024)]


def table(rows):
    rows = [TITLES] + rows
    widths = [max(len(r[i]) for r in rows) for i in range(len(TITLES))]
    lines = [" ".join([x.ljust(w) for x, w in zip(r[:2], widths)] +
                      [x.rjust(w) for x, w in zip(r[2:], widths[2:])]) for r in rows]
    at = [sum(widths[:i]) + i for i in (VIOLATIONS, OTHERS)]
    return "\n".join([" " * at[0] + "violations:".ljust(at[1] - at[0]) + "others:"] +
                     lines)


def parse():
    p = argparse.ArgumentParser(prog="powercut", allow_abbrev=False,
                                usage="lab/powercut [OPTION...] (see --help)")
    p.add_argument("--server", action="append")
    p.add_argument("--workloads", default=",".join(WORKLOADS))
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--requests", type=int, default=300)
    p.add_argument("--cuts", type=int, default=400)
    p.add_argument("--asked", type=int, default=20)
    p.add_argument("--seed", type=int)
    p.add_argument("--plugin", required=True)
    p.add_argument("--programs")
    # Before they are built: only says what is wrong with the other arguments.
    p.add_argument("--only-parse", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--work")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--json")
    config = p.parse_args()
    config.workloads = config.workloads.split(",")
    for name in config.workloads:
        if name not in WORKLOADS:
            p.error("--workloads: not %s: %s" % (",".join(WORKLOADS), name))
    for option in "rounds", "requests", "cuts":
        if getattr(config, option) < 1:
            p.error("--%s must be at least 1" % option)
    try:
        config.servers = [Server(s) for s in config.server or ("plugin", "qemu-nbd")]
    except ValueError as e:
        p.error("--server: %s" % e)
    if config.work and os.path.lexists(config.work):
        sys.exit("powercut: --work: %s exists; name a new directory" % config.work)
    if config.only_parse:
        sys.exit(0)
    if not config.programs:
        p.error("--programs is missing")
    config.programs = os.path.realpath(config.programs)
    for name in "judge", "load", ".libs/record.so":
        if not os.path.exists(os.path.join(config.programs, name)):
            p.error("--programs: %s is not in %s" % (name, config.programs))
    if config.seed is None:
        config.seed = int(os.environ.get("SEED") or random.SystemRandom().getrandbits(32))
    config.nbdkit = os.environ.get("NBDKIT", "nbdkit")
    return config


def violations(counts):
    """What must not happen, as in the table."""
    return (counts["lost"][0] + counts["snapshot"][0] + counts["corrupt"] +
            counts["corrupt_later"])


def main():
    config = parse()
    try:
        if config.work:
            os.mkdir(config.work)
        else:
            config.work = tempfile.mkdtemp(prefix="powercut.")
    except OSError as e:
        print("powercut: %s" % e, file=sys.stderr)
        return 1
    config.work = os.path.realpath(config.work)
    # The name of a socket must fit in 108 bytes.
    sockets = tempfile.mkdtemp(prefix="powercut.")
    print("SEED=%d" % config.seed, flush=True)
    try:
        results = run(config, sockets)
        print(table([row(name, server, c) for name, servers in results.items()
                     for server, c in servers.items()]))
        if config.json:
            with open(config.json, "w", encoding="utf-8") as f:
                json.dump({"seed": config.seed, "workloads": results}, f, indent=1)
    except (Failure, OSError, nbd.Error, subprocess.CalledProcessError) as e:
        print("powercut: %s" % e, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("powercut: interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(sockets)
        if config.keep:
            print("kept: " + config.work)
        else:
            shutil.rmtree(config.work)
    ours = {s.name for s in config.servers if s.start_own == start_plugin}
    if any(violations(c) for servers in results.values()
           for server, c in servers.items() if server in ours):
        print("powercut: the plugin has violations", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
