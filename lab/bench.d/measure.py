# SPDX-License-Identifier: BSD-3-Clause
"""How rows are measured: all servers in turn, for some rounds; what those who measure
have to know (Config), and what they say meanwhile."""

import contextlib
import os
import subprocess
import sys
import time

import nbd

import clients
import images
import machine
import report
import rows
import servers
from images import GiB, MiB


def default_size(quick):
    """A raw file and an image of this size must fit in the page cache, twice over."""
    size = 256 * MiB if quick else 4 * GiB
    while size > 64 * MiB and size > machine.memory() // 4:
        size //= 2
    return size


def whole_path(plugin):
    """The path of a plugin; names of installed ones stay as they are."""
    return os.path.abspath(plugin) if os.path.exists(plugin) else plugin


class Config:
    """What all modules want to know."""

    def __init__(self, args):
        self.top = args.top
        self.nbdkit = os.environ.get("NBDKIT", "nbdkit")
        self.plugin = whole_path(args.plugin)
        # Another build of the plugin, if there is one.
        self.before = args.before and whole_path(args.before)
        self.quick = args.quick
        # A row is measured again if two equal servers differ by more, as a part of 1.
        self.noise = None if args.quick else 0.1
        if args.noise is not None:
            self.noise = args.noise / 100
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

# So often is a row measured before it is given up.
ATTEMPTS = 3


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


@contextlib.contextmanager
def in_its_role(config, kind, reference):
    """The other build is used as the plugin is, on the same images; and the reference once
    more."""
    plugin = config.plugin
    if kind == servers.BEFORE:
        kind, config.plugin = servers.PLUGIN, config.before
    elif kind == servers.SELF:
        kind = reference
    try:
        yield kind
    finally:
        config.plugin = plugin


def kinds_of(config, row):
    kinds = list(row.kinds)
    # (Not beside the reference, whoever begins.)
    if report.reference(row) in kinds:
        kinds.insert(-1, servers.SELF)
    if config.before and servers.PLUGIN in kinds:
        kinds.append(servers.BEFORE)
    return kinds


def measure_row(config, row, kinds):
    """A sample of each server, in turn.  Those that fail once are not tried again."""
    texts = []
    for kind in kinds:
        if kind in row.skipped:
            continue
        try:
            with in_its_role(config, kind, report.reference(row)) as role:
                sample = row.sample(config, role)
            texts.append("%s %s" % (servers.LABELS[kind], report.number(sample.value)))
        except (servers.ServerError, clients.ClientError, nbd.Error, OSError,
                subprocess.TimeoutExpired) as e:
            row.skipped[kind] = str(e)
            sample = None
            texts.append("%s FAILED: %s" % (servers.LABELS[kind], e))
        row.add(kind, sample)
    return ", ".join(texts)


def too_noisy(config, row):
    """What two equal servers differ by, as a ratio, or None if that is little enough."""
    own = report.ratio_to_itself(row)
    if config.noise is None or own is None or abs(own["median"] - 1) <= config.noise:
        return None
    return own["median"]


def in_turn(kinds, turn):
    """Another one begins each time; and each has now one neighbour before it, now the
    other, which may have left the same file in the caches of the processor."""
    step = -1 if turn % 2 else 1
    return [kinds[(turn + step * i) % len(kinds)] for i in range(len(kinds))]


def measure_round(config, n, active, progress):
    """Rows that are measured often don't get all of it at once: what disturbs the machine
    lasts a while."""
    for m in range(max((row.often for row in active), default=0)):
        for row in active:
            if m >= row.often:
                continue
            progress.passing(row.name)
            progress.step("%s, round %d: %s" % (row.name, n + 1, measure_row(
                config, row, in_turn(kinds_of(config, row), n * row.often + m))))


def measure_group(config, group, progress):
    active = [row for row in group.rows if "" not in row.skipped]
    if not active:
        return
    for row in active:
        row.kinds = tuple(k for k in row.kinds if k in config.kinds)
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

    again = [row for row in active if row.rss_of is None]
    for attempt in range(ATTEMPTS):
        for n in range(config.rounds):
            measure_round(config, n, again, progress)
        for row in again:
            row.noisy = too_noisy(config, row)
        again = [row for row in again if row.noisy]
        if not again or attempt == ATTEMPTS - 1:
            break
        for row in again:
            progress.line("   %s: equal servers differed, %.2f: once more"
                          % (row.name, row.noisy))
            row.samples.clear()
        progress.total += config.rounds * sum(row.often for row in again)
    for row in active:
        if row.rss_of is None:
            continue
        for kind, samples in row.rss_of.samples.items():
            row.samples[kind] = [s and rows.Sample(s.rss / MiB) for s in samples]
    images.remove(config.images)
