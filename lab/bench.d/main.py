# SPDX-License-Identifier: BSD-3-Clause
"""lab/bench, after what it needs is installed and built: see its opening comment."""

import argparse
import os
import re
import signal
import sys
import tempfile
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import cases
import images
import machine
import plots
import report
import rows
import servers
from images import GiB, MiB
from measure import Config, Progress, best_aio, measure_group
from options import parse_servers, parse_size, positive

# What a group's estimate may be wrong by, and what stays free for others.
RESERVE = GiB


# --- the command line

def parse_cases(text):
    wanted = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        wanted.update(range(int(first), int(last or first) + 1))
    if not wanted <= set(cases.CASES):
        raise argparse.ArgumentTypeError("%s: cases are 1 to %d"
                                         % (text, max(cases.CASES)))
    return sorted(wanted)


def only_rows(groups, wanted):
    """The groups with the rows whose names match, and those that these need."""
    for group in groups:
        keep = [r for r in group.rows if wanted.search(r.name)]
        for k in keep:          # it grows
            keep += [r for r in (k.rss_of, k.against) if r]
        group.rows = [r for r in group.rows if any(r is k for k in keep)]
    return [group for group in groups if group.rows]


def parse_args():
    p = argparse.ArgumentParser(
        prog="lab/bench", add_help=False, allow_abbrev=False,
        usage="lab/bench [--quick] [--cases LIST] [--rows REGEX] [--rounds N]\n"
              "                     [--cold] [--build|--plugin PATH] [--before PATH]\n"
              "                     [--out DIR] [--size SIZE] [--seconds N]\n"
              "                     [--servers LIST] [--noise PERCENT]")
    p.add_argument("--top", required=True, help=argparse.SUPPRESS)
    p.add_argument("--plugin", required=True)
    p.add_argument("--before")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--cold", action="store_true")
    p.add_argument("--cases", type=parse_cases, default=sorted(cases.CASES))
    p.add_argument("--rows", type=re.compile)
    p.add_argument("--rounds", type=positive(int))
    p.add_argument("--out")
    p.add_argument("--size", type=parse_size)
    p.add_argument("--seconds", type=positive(float))
    p.add_argument("--noise", type=positive(float))
    p.add_argument("--servers", type=parse_servers, default=list(servers.KINDS))
    return p.parse_args()


def die(message):
    sys.exit("bench: " + message)


# --- measuring

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
        "before": config.before and machine.plugin_features(config.nbdkit, config.before),
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
        rows.claim_memory(config, machine.memory("MemAvailable") // 2)
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
    for plugin in filter(None, (config.plugin, config.before)):
        if machine.plugin_features(config.nbdkit, plugin).get("name") != "qcow2":
            die("%s: nbdkit cannot load this as the qcow2 plugin" % plugin)
    if config.before and servers.PLUGIN not in config.kinds:
        die("--before: --servers leaves out what it is compared with")
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
