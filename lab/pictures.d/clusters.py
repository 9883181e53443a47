# SPDX-License-Identifier: BSD-3-Clause
"""What does the cluster size change when images are made, and written for the first
time?"""

import cases
from draw import Panel, line, published, svg
from servers import KINDS, LIMIT, PLUGIN, QEMU

NOTES = [
    "Published: creating 4 GB with clusters of 64K, on a hard disk (J. Coyle, qcow2"
    " Physical Size With Different preallocation Settings, jamescoyle.net).  For other"
    " cluster sizes we know of no published figures.",
]
COYLE = {"off": 0.312, "metadata": 0.507, "falloc": 0.015, "full": 39.402}
CREATORS = {LIMIT: "dd", QEMU: "qemu-img", PLUGIN: "plugin"}
CREATE = "3-create, preallocation="
# (the curve of the bench, title, what the y axis shows)
WRITES = [
    ("3-sequential write 1M", "Writing 1M at a time, in order, into an empty image",
     "MiB per second"),
    ("3-random write 4K, depth 16", "Random writes of 4K into an empty image",
     "writes per second"),
    ("3-random write 4K, flush after each", "Random writes of 4K, a flush after each",
     "writes per second"),
]
# Mark and dash.
STYLES = {"off": (7, 1), "metadata": (5, 3), "falloc": (7, 1), "full": (5, 3)}


def groups(config):
    made = cases.allocation(config)
    for group in made:
        for row in group.rows:
            row.often = 1
            row.goals = {}
    return made


def curve(groups, name):
    return [row for group in groups for row in group.rows if row.curve[0] == name]


def draw(groups, path):
    panels = []
    for some in (("off", "metadata"), ("falloc", "full")):
        lines = []
        for kind, label in CREATORS.items():
            for preallocation in some:
                mark, dash = STYLES[preallocation]
                lines.append(line(curve(groups, CREATE + preallocation), kind,
                                  "%s, %s" % (label, preallocation), mark=mark,
                                  dash=dash))
        lines += [published("published, " + preallocation,
                            [(65536, COYLE[preallocation])],
                            mark=STYLES[preallocation][0] - 1) for preallocation in some]
        panels.append(Panel("Creating an image, preallocation=%s and %s" % some,
                            "cluster size", "seconds", lines))
    panels += [Panel(title, "cluster size", unit,
                     [line(curve(groups, name), kind) for kind in KINDS])
               for name, title, unit in WRITES]
    return svg(path, "The cluster size, when images are made and first written", panels,
               columns=3, width=400, notes=NOTES)
