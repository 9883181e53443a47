# SPDX-License-Identifier: BSD-3-Clause
"""scripts/bench, after what it needs is installed and built: see its opening comment."""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import nbd

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import cases
import clients
import images
import machine
import plots
import report
import rows
import servers
from images import GiB, MiB

# What a group's estimate may be wrong by, and what stays free for others.
RESERVE = GiB


class Config:
    """What all modules want to know."""

    def __init__(self, args):
        self.top = args.top
        self.nbdkit = os.environ.get("NBDKIT", "nbdkit")
        self.plugin = args.plugin
        if os.path.exists(self.plugin):
            self.plugin = os.path.abspath(self.plugin)
        self.quick = args.quick
        self.cold = args.cold
        self.rounds = args.rounds or (2 if args.quick else 3)
        self.seconds = args.seconds or (0.4 if args.quick else 3)
        self.size = args.size or default_size(args.quick)
        self.kinds = args.servers
        self.qemu_aio = "threads"
        self.features = machine.plugin_features(self.nbdkit, self.plugin)

    def path(self, name):
        """Of an image."""
        return os.path.join(self.images, name)

    def need(self, some_rows, feature):
        """The plugin may not have this yet: then these rows are skipped."""
        has = self.features.get("qcow2_" + feature)
        if has != "yes":
            for row in some_rows:
                row.skipped[""] = ("this plugin can't (--dump-plugin: qcow2_%s=%s)"
                                   % (feature, has) if has else
                                   "this plugin can't (--dump-plugin has no qcow2_%s)"
                                   % feature)


# --- the command line

def default_size(quick):
    """A raw file and an image of this size must fit in the page cache, twice over."""
    size = 256 * MiB if quick else 4 * GiB
    while size > 64 * MiB and size > machine.memory() // 4:
        size //= 2
    return size


def parse_size(text):
    factor = {"K": 1024, "M": MiB, "G": GiB}.get(text[-1:].upper())
    size = int(text[:-1]) * factor if factor else int(text)
    if size < 4 * MiB or size % MiB:
        raise argparse.ArgumentTypeError("%s: whole MiB, 4M at least" % text)
    return size


def parse_cases(text):
    wanted = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        wanted.update(range(int(first), int(last or first) + 1))
    if not wanted <= set(cases.CASES):
        raise argparse.ArgumentTypeError("%s: cases are 1 to %d"
                                         % (text, max(cases.CASES)))
    return sorted(wanted)


def parse_servers(text):
    kinds = text.split(",")
    if not set(kinds) <= set(servers.KINDS):
        raise argparse.ArgumentTypeError("%s: servers are %s"
                                         % (text, ", ".join(servers.KINDS)))
    return [k for k in servers.KINDS if k in kinds]


def only_rows(groups, wanted):
    """The groups with the rows whose names match, and those that these need."""
    for group in groups:
        keep = [r for r in group.rows if wanted.search(r.name)]
        for k in keep:          # it grows
            keep += [r for r in (k.rss_of, k.against) if r]
        group.rows = [r for r in group.rows if any(r is k for k in keep)]
    return [group for group in groups if group.rows]


def positive(kind):
    def parse(text):
        n = kind(text)
        if not 0 < n < 1e6:
            raise ValueError(text)
        return n
    return parse


def parse_args():
    p = argparse.ArgumentParser(
        prog="scripts/bench", add_help=False, allow_abbrev=False,
        usage="scripts/bench [--quick] [--cases LIST] [--rows REGEX] [--rounds N]\n"
              "                     [--cold] [--build|--plugin PATH] [--out DIR]\n"
              "                     [--size SIZE] [--seconds N] [--servers LIST]")
    p.add_argument("--top", required=True, help=argparse.SUPPRESS)
    p.add_argument("--plugin", required=True)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--cold", action="store_true")
    p.add_argument("--cases", type=parse_cases, default=sorted(cases.CASES))
    p.add_argument("--rows", type=re.compile)
    p.add_argument("--rounds", type=positive(int))
    p.add_argument("--out")
    p.add_argument("--size", type=parse_size)
    p.add_argument("--seconds", type=positive(float))
    p.add_argument("--servers", type=parse_servers, default=list(servers.KINDS))
    return p.parse_args()


def die(message):
    sys.exit("bench: " + message)


# --- progress

class Progress:
    """One line on stderr, renewed on a terminal."""

    def __init__(self, total):
        self.total, self.done = total, 0
        self.began = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def line(self, text):
        sys.stderr.write(("\r\033[K" if self.terminal else "") + text + "\n")
        sys.stderr.flush()

    def passing(self, text):
        if self.terminal:
            sys.stderr.write("\r\033[K" + text[:110])
            sys.stderr.flush()

    def step(self, text):
        self.done += 1
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        self.line("[%d/%d %d:%02d] %s" % (self.done, self.total, minutes, seconds, text))


# --- measuring

def best_aio(config):
    """How qemu-nbd is fastest here: its own measure, on an image of its own."""
    modes = ("io_uring", "native") if config.cold else ("io_uring", "threads")
    size = min(config.size, 64 * MiB)
    seconds = min(1, config.seconds)
    raw, image = config.path("probe.raw"), config.path("probe.qcow2")
    images.random_raw(raw, size)
    images.in_order(raw, image)
    found = {}
    for mode in modes:
        config.qemu_aio = mode
        score = 1
        try:
            for rw in ("randread", "randwrite"):
                take = rows.load({servers.QEMU: image}, clients.iops(
                    rw, 4096, 16, size, seconds=seconds))
                score *= take(config, servers.QEMU).value
            found[mode] = score ** 0.5
        except (servers.ServerError, clients.ClientError):
            # Not built in, or not allowed here.
            found[mode] = 0
    os.unlink(raw)
    os.unlink(image)
    config.qemu_aio = max(modes, key=lambda mode: found[mode])
    return found


def measure_row(config, row, kinds):
    """A sample of each server, in turn.  Those that fail once are not tried again."""
    texts = []
    for kind in kinds:
        if kind in row.skipped:
            continue
        try:
            sample = row.sample(config, kind)
            texts.append("%s %s" % (servers.LABELS[kind], report.number(sample.value)))
        except (servers.ServerError, clients.ClientError, nbd.Error, OSError,
                subprocess.TimeoutExpired) as e:
            row.skipped[kind] = str(e)
            sample = None
            texts.append("%s FAILED: %s" % (servers.LABELS[kind], e))
        row.add(kind, sample)
    return ", ".join(texts)


def measure_round(config, n, active, progress):
    """Rows that are measured often don't get all of it at once: what disturbs the machine
    lasts a while."""
    for m in range(max((row.often for row in active), default=0)):
        for row in active:
            if m >= row.often:
                continue
            kinds = [k for k in row.kinds if k in config.kinds]
            # Another one begins each time.
            first = (n * row.often + m) % len(kinds) if kinds else 0
            progress.passing(row.name)
            progress.step("%s, round %d: %s" % (row.name, n + 1, measure_row(
                config, row, kinds[first:] + kinds[:first])))


def measure_group(config, group, progress):
    active = [row for row in group.rows if "" not in row.skipped]
    if not active:
        return
    progress.passing("preparing: " + group.title)
    images.remove(config.images)
    os.mkdir(config.images)
    try:
        if group.prepare:
            began = time.monotonic()
            group.prepare(config)
            # At once: one by one, the files of a long chain take a while.
            images.run("sync", "-f", config.images)
            progress.line("   %s: images made in %.0f s"
                          % (group.title, time.monotonic() - began))
    except (servers.ServerError, nbd.Error, OSError, subprocess.SubprocessError) as e:
        for row in active:
            row.skipped[""] = "its image could not be made: %s" % e
        progress.line("   %s: %s" % (group.title, e))
        return

    for n in range(config.rounds):
        measure_round(config, n, [r for r in active if r.rss_of is None], progress)
    for row in active:
        if row.rss_of is None:
            continue
        for kind, samples in row.rss_of.samples.items():
            row.samples[kind] = [s and rows.Sample(s.rss / MiB) for s in samples]
    images.remove(config.images)


def run(config, plan, out):
    needed = config.size + RESERVE + max(
        (g.disk for _, _, groups in plan for g in groups
         if any("" not in r.skipped for r in g.rows)), default=0)
    free = rows.free_bytes(config.work)
    if free < needed:
        die("%s: %d GiB are free, %d are needed; see --out, --size and --quick"
            % (out, free // GiB, -(-needed // GiB)))

    settings = {
        "machine": machine.describe(config, config.features),
        "quick": config.quick, "cold": config.cold, "rounds": config.rounds,
        "seconds": config.seconds, "size_bytes": config.size,
    }
    progress = Progress(config.rounds * sum(
        row.often for _, _, groups in plan for group in groups for row in group.rows
        if "" not in row.skipped and row.rss_of is None))
    progress.line("at most %.1f GB of disk, in %s" % (needed / 1e9, config.work))
    if servers.QEMU in config.kinds:
        settings["qemu_aio_probe"] = best_aio(config)
    settings["qemu_aio"] = config.qemu_aio
    settings["qemu_options"] = " ".join(servers.qemu_options(config))
    if 8 in [number for number, _, _ in plan]:
        settings["machine"]["aes_256_xts_mib_per_s_and_core"] = machine.cipher_speed()

    # Also when it is interrupted, or something is wrong: what there is.
    try:
        progress.passing("writing %d MiB of random bytes" % (config.size // MiB))
        images.random_raw(config.pool, config.size)
        for number, title, groups in plan:
            progress.line("%d. %s" % (number, title))
            for group in groups:
                measure_group(config, group, progress)
    finally:
        servers.kill_all()
        if progress.done:
            write_results(plan, settings, out)


def write_results(plan, settings, out):
    text = "\n".join(report.table(plan, settings, machine.lines(settings["machine"])))
    print(text, flush=True)
    with open(os.path.join(out, "table.txt"), "w") as f:
        f.write(text + "\n")
    with open(os.path.join(out, "results.json"), "w") as f:
        f.write(report.to_json(plan, settings))
    made = plots.plot_all(plan, out)
    print("\n%s: table.txt results.json %s" % (out, " ".join(made)), flush=True)


def main():
    args = parse_args()
    config = Config(args)
    if config.features.get("name") != "qcow2":
        die("%s: nbdkit cannot load this as the qcow2 plugin" % args.plugin)
    if config.cold and os.geteuid() != 0:
        die("--cold: only root can drop the page cache")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: terminated"))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit("bench: terminated"))

    out = os.path.abspath(args.out or os.path.join(
        config.top, "bench-results", time.strftime("%Y%m%d-%H%M%S")))
    os.makedirs(out, exist_ok=True)
    # Sockets apart: their names must be short.
    with tempfile.TemporaryDirectory(prefix="work.", dir=out) as config.work, \
         tempfile.TemporaryDirectory(prefix="bench.", dir="/tmp") as config.sockets:
        config.pool = os.path.join(config.work, "pool.raw")
        config.images = os.path.join(config.work, "images")
        os.mkdir(config.images)
        plan = [(number, cases.CASES[number][0], cases.CASES[number][1](config))
                for number in args.cases]
        if args.rows:
            plan = [(number, title, only_rows(groups, args.rows))
                    for number, title, groups in plan]
            plan = [case for case in plan if case[2]]
            if not plan:
                die("no row has a name that matches '%s'" % args.rows.pattern)
        try:
            run(config, plan, out)
        except KeyboardInterrupt:
            die("interrupted")


if __name__ == "__main__":
    main()
