# SPDX-License-Identifier: BSD-3-Clause
"""Serves images for a long time, and judges all of it: see lab/soak.

Each track is a process, with servers and images of its own.  This one looks at their
servers once per second, and ends all of them when the first has failed."""

import argparse
import faulthandler
import json
import multiprocessing
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.dirname(HERE), os.path.join(HERE, "..", "..", "tests", "lib")]

import curves
from far import Far
from house import House
from lives import Lives
from model import Failure
from servers import usage

TRACKS = {t.name: t for t in (Lives, Far, House)}
STUCK_SECONDS = 600             # without an answer to any request


def features(config):
    """Of this build: those that mixture.py asks about."""
    dump = subprocess.run([config.nbdkit, config.plugin, "--dump-plugin"], check=True,
                          stdout=subprocess.PIPE).stdout.decode().split()
    return ["luks", "aes"] + [f for f in ("extended_l2", "data_file", "zstd", "compress")
                              if "qcow2_%s=yes" % f in dump]


def run_track(config, name, requests, reports):
    """In a process of its own, the leader of a group, so that all of it can be ended."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR1)       # where does it hang?
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    track = TRACKS[name](config, requests)
    try:
        track.go(lambda line: reports.put(("said", name, line)))
        reports.put(("done", name, track.counts))
    except Failure as e:
        reports.put(("failed", name, str(e)))
    except BaseException as e:
        reports.put(("failed", name, "%s: %s" % (type(e).__name__, e)))


class Sampler:
    def __init__(self, config, counters):
        self.config, self.counters, self.samples = config, counters, []
        self.begun = time.monotonic()
        self.file = open(os.path.join(config.out, "samples.jsonl"), "w", encoding="utf-8")

    def sample(self):
        for name, counter in self.counters.items():
            try:
                with open(os.path.join(self.config.work, name, "now.json"),
                          encoding="utf-8") as f:
                    now = json.load(f)
                stats = [os.stat(x) for x in now["files"]]
            except OSError:             # between two images
                continue
            used = usage(now["pid"])
            if used is None:
                continue
            self.samples.append({
                "at": round(time.monotonic() - self.begun, 2), "track": name,
                "generation": now["generation"], "pid": now["pid"], "rss": used[0],
                "fds": used[1], "threads": used[2], "size": sum(s.st_size for s in stats),
                "allocated": 512 * sum(s.st_blocks for s in stats),
                "requests": counter.value})
            print(json.dumps(self.samples[-1]), file=self.file, flush=True)


def run(config, say):
    """All tracks, until the time is over.  Returns what was counted, and the samples."""
    counters = {name: multiprocessing.Value("q", 0) for name in config.tracks}
    reports, sampler, totals = multiprocessing.Queue(), Sampler(config, counters), {}
    processes = {name: multiprocessing.Process(
        target=run_track, args=(config, name, counters[name], reports), daemon=False)
        for name in config.tracks}
    for p in processes.values():
        p.start()
    left, moved, before = set(processes), time.monotonic(), None
    try:
        while left:
            sampler.sample()
            try:
                kind, name, what = reports.get(timeout=1)
            except queue.Empty:
                kind = None
            if kind == "failed":
                raise Failure(what)
            if kind == "said":
                say(what)
            elif kind == "done":
                left.discard(name)
                for k, n in what.items():
                    totals[k] = totals.get(k, 0) + n
            now = [c.value for c in counters.values()]
            if now != before:
                moved, before = time.monotonic(), now
            if time.monotonic() - moved > STUCK_SECONDS:
                raise Failure("%s: no request was answered for %d seconds" %
                              (", ".join(sorted(left)), STUCK_SECONDS))
            for name in left:
                if processes[name].exitcode not in (None, 0):
                    raise Failure("%s: the process has ended" % name)
    finally:
        for p in processes.values():
            if p.is_alive():
                try:
                    os.killpg(p.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            p.join()
    totals["requests"] = sum(before)
    return totals, sampler.samples


def parse():
    p = argparse.ArgumentParser(prog="soak", allow_abbrev=False,
                                usage="lab/soak [OPTION...] [MINUTES] (see --help)")
    p.add_argument("minutes", type=float, nargs="?", default=60)
    p.add_argument("--seed", type=int)
    p.add_argument("--only", default="")
    p.add_argument("--out")
    p.add_argument("--plugin", required=True)
    # Before it is built: only says what is wrong with the other arguments.
    p.add_argument("--only-parse", action="store_true", help=argparse.SUPPRESS)
    config = p.parse_args()
    if not 0 < config.minutes < 1e6:
        p.error("MINUTES must be more than 0")
    track, _, generation = config.only.partition(":")
    config.tracks, config.only = list(TRACKS), {}
    if track:
        if track not in TRACKS or not (generation or "0").isdigit():
            p.error("--only must be one of %s, or NAME:NUMBER" % ", ".join(TRACKS))
        config.tracks = [track]
        if generation:
            config.only[track] = int(generation)
    if config.out and os.path.lexists(config.out):
        sys.exit("soak: --out: %s exists; name a new directory" % config.out)
    if config.only_parse:
        sys.exit(0)
    return config


def main():
    # Children get what cannot be sent, such as locks and open files.
    multiprocessing.set_start_method("fork")
    config = parse()
    config.out = config.out or time.strftime("soak-results/%Y-%m-%d-%H%M%S")
    try:
        os.makedirs(config.out)
    except OSError as e:
        sys.exit("soak: %s" % e)
    config.nbdkit = os.environ.get("NBDKIT", "nbdkit")
    config.features = features(config)
    if config.seed is None:
        config.seed = int.from_bytes(os.urandom(4), "big")
    out = config.out = os.path.realpath(config.out)
    # The name of a socket has at most 107 bytes.
    config.work = tempfile.mkdtemp(prefix="soak.")
    config.deadline = time.monotonic() + 60 * config.minutes
    config.over = multiprocessing.Event()       # earlier
    signal.signal(signal.SIGINT, lambda *_: config.over.set())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    log = open(os.path.join(out, "log.txt"), "w", encoding="utf-8")

    def say(line):
        print(line, flush=True)
        print(line, file=log, flush=True)

    say("SEED=%d, %g minutes" % (config.seed, config.minutes))
    try:
        totals, samples = run(config, say)
    except Failure as e:
        track = str(e).partition(": ")[0]
        say("FAILED: %s" % e)
        shutil.move(config.work, os.path.join(out, "failed"))
        say("The files are in %s/failed.  To repeat it:" % out)
        say("    lab/soak --seed %d --only %s %g" % (config.seed, track,
                                                   max(config.minutes, 10)))
        return 1
    except BaseException:
        shutil.rmtree(config.work, ignore_errors=True)
        raise
    shutil.rmtree(config.work)
    with open(os.path.join(out, "totals.json"), "w", encoding="utf-8") as f:
        json.dump(totals, f, indent=1, sort_keys=True)
    for what, n in sorted(totals.items()):
        say("%9d  %s" % (n, what))
    for what, (a, b) in curves.growth(samples).items():
        say("%s of the server that lives long: %d, at last %d" % (what, a, b))
    if samples:
        curves.draw(samples, "%.0f minutes, %d requests" % (
            samples[-1]["at"] / 60, totals["requests"]), os.path.join(out, "soak.svg"))
    creep = curves.creeping(samples)
    for line in creep:
        say("FAILED: " + line)
    return 1 if creep else 0


if __name__ == "__main__":
    sys.exit(main())
