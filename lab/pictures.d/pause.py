# SPDX-License-Identifier: BSD-3-Clause
"""What does a client that writes notice when a disk in use is changed?  Its answers per
millisecond, before, during and after four changes."""

import live
from draw import Line, Panel, svg
from images import GiB
from plots import COLOURS
from rows import LESS, Group, Row
from servers import PLUGIN, QEMU

NAMES = {QEMU: "qemu-storage-daemon", PLUGIN: "plugin"}
CHANGES = [change for change in live.SHORT if change[0] in (
    "external snapshot", "internal snapshot", "internal snapshot, deleted",
    "mirror, its start")]
# Milliseconds: the length of a point, and what is shown before and after the command.
STEP, BEFORE, AFTER = 4, 60, 260
NOTES = [
    "A client writes 4K at a time, to another cluster each time, on a disk of 100 GiB whose"
    " clusters are all allocated.  At 0 the command is sent.  The last of all rounds is"
    " shown.",
]

# Answers per millisecond: by the change, then by the server.
answers = {name: {} for name, *_ in CHANGES}


def per_millisecond(times, began):
    counts = dict.fromkeys(range(-BEFORE // STEP, AFTER // STEP), 0)
    for t in times:
        step = int((t - began) * 1000 // STEP)
        if step in counts:
            counts[step] += 1
    # What came after the last answer was not watched.
    end = (times[-1] - began) * 1000 // STEP
    return [(step * STEP, count / STEP) for step, count in counts.items() if step < end]


def recorded(path, name, before, change):
    def sample(config, kind):
        def value(times, began, ended):
            answers[name][kind] = per_millisecond(times, began)
            return live.longest(times, began, ended)
        return live.watched(path, before, change, value)(config, kind)
    return sample


def missing(config):
    return live.missing()


def groups(config):
    path = config.path("full.qcow2")
    return [Group("longest pause of a writer, a disk of 100G",
                  [Row(name, "ms", recorded(path, name, before, change), better=LESS,
                       kinds=live.KINDS) for name, before, change, _ in CHANGES],
                  lambda c: live.large_image(path), disk=4 * GiB)]


def draw(groups, path):
    return svg(path, "Changes of a disk in use", [
        Panel(name, "milliseconds after the command", "answers per millisecond",
              [Line(NAMES[kind], COLOURS[kind], [(x, y, y, y) for x, y in points], mark=0)
               for kind, points in answers[name].items()],
              tics=[(x, str(x)) for x in range(0, AFTER, 50)], log="")
        for name, *_ in CHANGES], notes=NOTES)
