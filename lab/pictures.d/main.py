# SPDX-License-Identifier: BSD-3-Clause
"""lab/pictures, after what it needs is installed and built: see its opening comment.

A picture is a module with the functions
  groups (config)         what is measured: groups of rows, as in lab/bench.d/cases.py
  draw (groups, path)     makes the SVG
  missing (config)        why this machine can't measure it, or None; only if there are
                          reasons
and NOTES: lines under the picture and the table, above all where published figures come
from.
"""

import argparse
import os
import signal
import sys
import tempfile
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
for directory in (os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "bench.d")):
    sys.path.append(directory)

import cache
import chain
import clusters
import guest
import images
import machine
import pause
import report
import rocksdb
import rows
import servers
import slices
from images import GiB, MiB
from measure import Config, Progress, best_aio, measure_group
from options import parse_servers, parse_size, positive

PICTURES = {"cache": cache, "slices": slices, "clusters": clusters, "chain": chain,
            "rocksdb": rocksdb, "guest": guest, "pause": pause}
SIZE = 512 * MiB
# What stays free for others.
RESERVE = GiB


def parse_args():
    p = argparse.ArgumentParser(
        prog="lab/pictures", add_help=False, allow_abbrev=False,
        usage="lab/pictures [--out DIR] [--work DIR] [--rounds N]\n"
              "                        [--seconds N] [--size SIZE] [--servers LIST]\n"
              "                        [--cold] [--quick] [--build|--plugin PATH]\n"
              "                        [NAME...]")
    p.add_argument("--top", required=True, help=argparse.SUPPRESS)
    p.add_argument("--plugin", required=True)
    p.add_argument("--out")
    p.add_argument("--work", default="/var/tmp")
    p.add_argument("--rounds", type=positive(int), default=3)
    p.add_argument("--seconds", type=positive(float), default=0.5)
    p.add_argument("--size", type=parse_size, default=SIZE)
    p.add_argument("--servers", type=parse_servers,
                   default=[servers.QEMU, servers.PLUGIN])
    p.add_argument("--cold", action="store_true")
    p.add_argument("--quick", action="store_true")
    p.add_argument("names", nargs="*", metavar="NAME")
    # (measure.Config asks.)
    p.set_defaults(before=None, noise=None)
    args = p.parse_args()
    for name in args.names:
        if name not in PICTURES:
            p.error("%s: pictures are %s" % (name, ", ".join(PICTURES)))
    return args


def die(message):
    sys.exit("pictures: " + message)


def possible(config, names):
    """Those pictures that this machine can measure.  The user may have named them."""
    found = []
    for name in names or PICTURES:
        reason = getattr(PICTURES[name], "missing", lambda config: None)(config)
        if reason and names:
            die("%s: %s" % (name, reason))
        if reason:
            print("%s is left out: %s" % (name, reason), flush=True)
        else:
            found.append(name)
    return found


def paint(config, name, out):
    """Measures, draws, and prints what was drawn."""
    picture = PICTURES[name]
    groups = picture.groups(config)
    needed = config.size + RESERVE + max(group.disk for group in groups)
    if rows.free_bytes(config.work) < needed:
        die("%s: %d GiB have to be free; see --work and --size"
            % (config.work, -(-needed // GiB)))
    progress = Progress(config.rounds * sum(
        row.often for group in groups for row in group.rows
        if "" not in row.skipped and row.rss_of is None))
    progress.line(name)
    for group in groups:
        measure_group(config, group, progress)
    path = os.path.join(out, "picture-%s%s.svg" % (
        name, "-cold" if config.cold else ""))
    drawn = picture.draw(groups, path)
    print("\n%s" % name)
    for group in groups:
        print("\n".join(report.group_table(group)))
    print()
    for note in picture.NOTES:
        print(textwrap.fill(note, 100, initial_indent="  ", subsequent_indent="    "))
    print("  " + (path if drawn else "no picture: no figures"), flush=True)


def measure(config, names, out):
    print("\n".join(machine.lines(machine.describe(config, config.features))))
    if servers.QEMU in config.kinds:
        best_aio(config)
    print("%s page cache, %d round%s, samples of %g s; qemu-nbd %s"
          % ("cold" if config.cold else "warm", config.rounds,
             "" if config.rounds == 1 else "s", config.seconds,
             " ".join(servers.qemu_options(config))))
    print("Medians; ratios say how many times better the plugin is (and the extremes).  "
          "self: the first server, measured twice in each turn, to itself.",
          flush=True)
    images.random_raw(config.pool, config.size)
    for name in names:
        paint(config, name, out)


def main():
    args = parse_args()
    config = Config(args)
    if config.features.get("name") != "qcow2":
        die("%s: nbdkit cannot load this as the qcow2 plugin" % args.plugin)
    if config.cold and os.geteuid() != 0:
        die("--cold: only root can drop the page cache")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("pictures: terminated"))

    out = os.path.abspath(args.out or os.path.join(config.top, "doc", "plots"))
    os.makedirs(out, exist_ok=True)
    # Sockets apart: their names must be short.
    with tempfile.TemporaryDirectory(prefix="pictures.", dir=args.work) as config.work, \
         tempfile.TemporaryDirectory(prefix="pictures.", dir="/tmp") as config.sockets:
        config.pool = os.path.join(config.work, "pool.raw")
        config.images = os.path.join(config.work, "images")
        os.mkdir(config.images)
        try:
            measure(config, possible(config, args.names), out)
        except KeyboardInterrupt:
            die("interrupted")
        finally:
            servers.kill_all()


if __name__ == "__main__":
    main()
