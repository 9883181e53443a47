# SPDX-License-Identifier: BSD-3-Clause
"""What do the layers of a chain cost: speed, memory, the time to begin, and the time to
get rid of them?"""

import cases
import report
from draw import Line, Panel, line, published, svg
from plots import COLOURS
from servers import KINDS, LIMIT, PLUGIN, QEMU

NOTES = [
    "Published (K. Nguetchouang et al., Virtual Disk Snapshot Management at Scale, 2022):"
    " over 500 layers, a changed format made RocksDB 1.48 times as fast as QEMU,"
    " with a fifteenth of the memory.  Here the format is qcow2 as it is.",
]
# (the curve of the bench, title, what the y axis shows)
PANELS = [
    ("6-random read 4K, depth 16", "Random reads of 4K", "reads per second"),
    ("6-nbdcopy of the whole disk", "Copying the whole disk", "MiB per second"),
    ("6-time to the first read", "Time to the first read", "seconds"),
    ("6-peak RSS", "Memory of the server after random reads", "MiB"),
    ("6-flatten", "Flattening: all layers become one", "seconds"),
]
# What flattens.
FLATTENERS = {LIMIT: "cp", QEMU: "qemu-img", PLUGIN: "plugin"}


def groups(config):
    group = cases.chains(config)[0]
    wanted = {name for name, _, _ in PANELS}
    group.rows = [row for row in group.rows if row.curve[0] in wanted]
    depths = sorted({row.curve[2] for row in group.rows})
    flatten = [cases.flatten_row(config, config.path("chain.raw"),
                                 config.path("chain%d.qcow2" % depth), depth)
               for depth in depths if depth > 1]
    config.need(flatten, "flatten")
    group.rows += flatten
    reads = {row.curve[2]: row for row in group.rows if row.curve[0] == PANELS[0][0]}
    for row in group.rows:
        row.goals, row.against = {}, None
        if row.rss_of:
            # With 1000 layers qemu-nbd does not get as far as copying the disk.
            row.rss_of = reads[row.curve[2]]
    return [group]


def ratios(rows):
    """How many times better the plugin is, by number of layers."""
    points = []
    for row in rows:
        r = report.ratio(row, QEMU)
        if r:
            points.append((row.curve[2], r["median"], r["low"], r["high"]))
    return points


def draw(groups, path):
    rows = {name: [row for row in groups[0].rows if row.curve[0] == name]
            for name, _, _ in PANELS}
    depths = sorted({row.curve[2] for row in groups[0].rows})
    tics = [(depth, "%d" % depth) for depth in depths]
    panels = [Panel(title, "layers", unit,
                    [line(rows[name], kind, FLATTENERS[kind] if name == "6-flatten"
                          else None) for kind in KINDS], tics)
              for name, title, unit in PANELS]
    speed, memory = PANELS[0][0], PANELS[3][0]
    panels.append(Panel("The plugin against qemu-nbd", "layers", "times better", [
        Line("speed of random reads", COLOURS[PLUGIN], ratios(rows[speed])),
        Line("memory", COLOURS[PLUGIN], ratios(rows[memory]), 5, 3),
        published("published, speed of RocksDB", [(500, 1.48)], mark=6),
        published("published, memory", [(500, 15)], mark=4)],
        [(n, "%d" % n if n in (1, 10, 100, 500) else "")
         for n in sorted(depths + [500])]))
    return svg(path, "Chains of 1 to 1000 layers", panels, columns=3, width=400,
               notes=NOTES)
