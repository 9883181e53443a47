# SPDX-License-Identifier: BSD-3-Clause
"""lab/comparison, after systems and programs are there: see its opening comment."""

import argparse
import dataclasses
import os
import re
import signal
import shutil
import subprocess
import sys
import tempfile

import nbd

LAB = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path += [os.path.join(LAB, "bench.d"), LAB]

import clients
import contestants
import images
import machine
import rows
import servers
import standings
import workloads
from images import GiB, MiB

FAILURES = (servers.ServerError, clients.ClientError, nbd.Error, OSError, ValueError,
            subprocess.SubprocessError)


class Config:
    """What all modules want to know."""

    def __init__(self, args):
        self.top = args.top
        self.nbdkit = os.environ.get("NBDKIT", "nbdkit")
        self.plugin, self.drivers = args.plugin, args.drivers
        # It is started elsewhere.
        self.core = args.core and os.path.abspath(args.core)
        self.quick = args.quick
        self.rounds = args.rounds or (2 if args.quick else 5)
        self.seconds = args.seconds or (0.3 if args.quick else 1)
        self.size = args.size or (64 * MiB if args.quick else GiB)
        self.threads = args.threads
        # A row is measured again if equal servers differ by more, as a part of 1.
        self.noise = None if args.quick else 0.1
        if args.noise is not None:
            self.noise = args.noise / 100
        self.sockets = args.sockets
        # In the order of the command line: contestants.System, or (name, why not).
        self.systems = [
            contestants.System(name) if how == "here" else
            contestants.System(name, value, args.environment.splitlines())
            if how == "root" else (name, value) for how, name, value in args.systems]
        # What bench's modules ask for when they make images.
        self.cold, self.qemu_aio = False, "threads"

    def path(self, name):
        """Of an image."""
        return os.path.join(self.images, name)


# --- the command line

class NamedSystem(argparse.Action):
    def __call__(self, parser, args, text, option=None):
        name, _, value = text.partition("=")
        args.systems = (args.systems or []) + [(option.strip("-"), name, value)]


def positive(kind):
    def parse(text):
        n = kind(text)
        if not 0 < n < 1e6:
            raise ValueError(text)
        return n
    return parse


def parse_size(text):
    factor = {"K": 1024, "M": MiB, "G": GiB}.get(text[-1:].upper())
    size = int(text[:-1]) * factor if factor else int(text)
    if size < 16 * MiB or size % MiB:
        raise argparse.ArgumentTypeError("%s: whole MiB, 16M at least" % text)
    return size


def parse_args():
    p = argparse.ArgumentParser(
        prog="lab/comparison", add_help=False, allow_abbrev=False,
        usage="lab/comparison [--quick] [--rounds N] [--systems LIST] [--only REGEX]\n"
              "                      [--rows REGEX] [--list] [--no-libraries]\n"
              "                      [--plugin PATH] [--core PATH] [--threads N]\n"
              "                      [--size SIZE] [--seconds N] [--out DIR] [--new]\n"
              "                      [--mirror URL] [--noise PERCENT]")
    for name in ("top", "plugin", "core", "drivers", "out", "sockets", "environment"):
        p.add_argument("--" + name, required=True, help=argparse.SUPPRESS)
    for name in ("here", "root", "missing"):
        p.add_argument("--" + name, action=NamedSystem, dest="systems")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--list", action="store_true")
    p.add_argument("--rounds", type=positive(int))
    p.add_argument("--threads", type=positive(int))
    p.add_argument("--only", type=re.compile, default=re.compile(""))
    p.add_argument("--rows", type=re.compile, default=re.compile(""))
    p.add_argument("--size", type=parse_size)
    p.add_argument("--noise", type=positive(float))
    p.add_argument("--seconds", type=positive(float))
    return p.parse_args()


# --- measuring

# So often is a row measured before it is given up.
ATTEMPTS = 3


def heats(field):
    """The plugin, or its core, with those that are measured in turn with it."""
    first = field[0]
    names = dict.fromkeys(c.heat for c in field[1:])
    return [[first] + [c for c in field[1:] if c.heat == name] for name in names]


def why_not(row, contestant):
    """The reason why it has no part in a row, or None."""
    if contestant.missing:
        return contestant.missing
    for need in row.needs:
        if need in contestant.cannot:
            return contestant.cannot[need]
    return row.skipped.get(contestant.name)


def measure(config, row, heat, turn):
    """One turn."""
    found = {}
    first = turn % (len(heat) + 1)
    # The first one once more, not beside itself.
    middle = (len(heat) + 1) // 2
    again = dataclasses.replace(heat[0], name=standings.SELF)
    field = [*heat[:middle], again, *heat[middle:]]
    for contestant in field[first:] + field[:first]:
        reason = why_not(row, contestant)
        if reason is None:
            try:
                found[contestant.name] = row.take(config, row, contestant)
                continue
            except FAILURES as e:
                reason = str(e)
                say("   %s: %s" % (contestant.name, reason))
        row.skipped[contestant.name] = reason
    ours = found.get(heat[0].name)
    for contestant in field:
        if contestant.name in found:
            row.samples.setdefault(contestant.name, []).append(
                (found[contestant.name], ours))
    return ", ".join("%s %s" % (name, standings.number(value))
                     for name, value in found.items())


def measure_row(config, row, field):
    for n in range(config.rounds):
        for i, heat in enumerate(heats(field)):
            said = measure(config, row, heat, n + i)
            say("%s, round %d: %s" % (row.name, n + 1, said))


def measure_group(config, group, field):
    images.remove(config.images)
    os.mkdir(config.images)
    if group.prepare:
        say("   making images")
        group.prepare(config)
        images.run("sync", "-f", config.images)
    for row in group.rows:
        for attempt in range(ATTEMPTS):
            measure_row(config, row, field)
            own = standings.spread(row, standings.SELF)
            row.noisy = (own is not None and config.noise is not None and
                         abs(own["median"] - 1) > config.noise)
            if not row.noisy:
                break
            say("   equal servers differed, %.2f" % own["median"])
            if attempt < ATTEMPTS - 1:
                row.samples.clear()
    images.remove(config.images)


def say(text):
    print(text, file=sys.stderr, flush=True)


def die(message):
    sys.exit("comparison: " + message)


def chosen(field, only):
    """Ours always takes part."""
    return field[:1] + [c for c in field[1:] if only.search(c.name)]


def serving(config):
    """Who does serve an image."""
    raw, image = config.path("small.raw"), config.path("small.qcow2")
    images.random_raw(raw, MiB)
    images.in_order(raw, image)
    return [contestants.that_works(config, c, [raw if c.raw else image])
            for c in contestants.of_nbd(config)]


def parts(config, args):
    """(Title, field, groups) of what is measured."""
    for title, field, groups in (
            ("Over NBD", serving(config), workloads.nbd_groups(config)),
            ("In one process", contestants.of_libraries(config),
             workloads.process_groups(config))):
        field = chosen(list(field), args.only)
        for group in groups:
            group.rows = [r for r in group.rows if args.rows.search(r.name)]
        groups = [g for g in groups if g.rows]
        if len(field) > 1 and groups:
            yield title, field, groups


def run(config, plan, settings, out):
    needed = 5 * config.size + GiB
    if rows.free_bytes(config.work) < needed:
        die("%s: %d GiB are needed; see --out and --size" % (out, -(-needed // GiB)))
    try:
        rows.claim_memory(config, machine.memory("MemAvailable") // 2)
        images.random_raw(config.pool, config.size)
        for title, field, groups in plan:
            say("== " + title)
            for group in groups:
                measure_group(config, group, field)
    finally:
        servers.kill_all()
        standings.write(plan, settings, out)


def main():
    try:
        args = parse_args()
    except SystemExit:
        # (lab/comparison made it.)
        shutil.rmtree(sys.argv[sys.argv.index("--sockets") + 1], ignore_errors=True)
        raise
    new = not os.listdir(args.out)
    signal.signal(signal.SIGTERM, lambda *_: die("terminated"))
    signal.signal(signal.SIGHUP, lambda *_: die("terminated"))
    try:
        with tempfile.TemporaryDirectory(prefix="work.", dir=args.out) as work:
            config = Config(args)
            config.work = work
            config.pool = os.path.join(work, "pool.raw")
            config.images = os.path.join(work, "images")
            os.mkdir(config.images)
            # So that it has the same name in a chroot.
            if os.path.exists(config.plugin):
                config.plugin = shutil.copy(config.plugin,
                                            os.path.join(work, "nbdkit-qcow2-plugin.so"))
            features = machine.plugin_features(config.nbdkit, config.plugin)
            if features.get("name") != "qcow2":
                die("%s: nbdkit cannot load this as the qcow2 plugin" % args.plugin)
            plan = list(parts(config, args))
            if not plan:
                die("there is no such row, or no such rival")
            if args.list:
                print("\n".join(standings.rivals(plan)))
                return
            settings = {"machine": machine.describe(config, features),
                        "threads": config.threads, "rounds": config.rounds,
                        "seconds": config.seconds, "size_bytes": config.size}
            run(config, plan, settings, args.out)
    except KeyboardInterrupt:
        die("interrupted")
    finally:
        shutil.rmtree(args.sockets, ignore_errors=True)
        if args.list and new:
            os.rmdir(args.out)


if __name__ == "__main__":
    main()
