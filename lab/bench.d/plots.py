# SPDX-License-Identifier: BSD-3-Clause
"""Plots, by gnuplot, as SVG.

case-N.svg: a bar for each row and server, relative to the limit (where a case has none:
to qemu-nbd); longer is better.  curve-NAME.svg: rows that differ in one number, with
their own units.
"""

import os
import re

import report
from common import gnuplot, quote
from rows import LESS
from servers import DRIVER, KINDS, LABELS, LIMIT, PLUGIN, QEMU

COLOURS = {LIMIT: "#888888", QEMU: "#d95f02", PLUGIN: "#1b7fb5",
           DRIVER: "#e6ab02"}


def header(path, width, height, title):
    return [
        "set terminal svg noenhanced size %d,%d background rgb 'white' "
        "font 'sans-serif,12'" % (width, height),
        "set output " + quote(path),
        "set title " + quote(title),
        "set border 3",
        "set grid lt 1 lc rgb '#dddddd'",
    ]


# --- bars

def relative(row, kind, base):
    """How many times better than the base."""
    a, b = report.median(row, kind), report.median(row, base)
    if not a or not b:
        return None
    return b / a if row.better == LESS else a / b


def bars(number, title, groups, path):
    rows = [row for group in groups for row in group.rows
            if row.samples and row.rss_of is None]
    base = LIMIT if any(report.values(row, LIMIT) for row in rows) else QEMU
    rows = [row for row in rows if report.median(row, base)]
    if not rows:
        return False
    kinds = [k for k in KINDS if any(report.values(row, k) for row in rows)]

    # Horizontal, the first row on top: names need room.
    width = 0.8 / len(kinds)
    biggest = 1
    script = ["$bars << END"]
    for i, row in enumerate(rows):
        for j, kind in enumerate(kinds):
            r = relative(row, kind, base)
            if r is None:
                continue
            biggest = max(biggest, r)
            y = i + (j - (len(kinds) - 1) / 2) * width
            # from x, y, to x, low y, high y, colour
            script.append("%g %g 0 %g %g %g %d" % (
                r / 2, y, r, y - width * 0.45, y + width * 0.45,
                int(COLOURS[kind][1:], 16)))
    script.append("END")
    script += header(path, 1000, 100 + 18 * len(rows) * len(kinds),
                     "%d. %s, relative to %s (longer is better)"
                     % (number, title, "the limit" if base == LIMIT else LABELS[base]))
    script += [
        "set yrange [%g:-0.7]" % (len(rows) - 0.3),
        "set xrange [0:%g]" % (biggest * 1.05),
        "set ytics (%s) scale 0" % ", ".join(
            "%s %d" % (quote(row.name), i) for i, row in enumerate(rows)),
        "set xtics scale 0.5",
        "set key outside top right",
        "set arrow from 1, graph 0 to 1, graph 1 nohead lc rgb '#444444' dt 2 front",
        "set style fill solid 1 noborder",
        "plot $bars using 1:2:3:4:5:6:7 with boxxyerror lc rgb variable notitle, "
        + ", ".join("NaN with boxes fs solid lc rgb '%s' title %s"
                    % (COLOURS[kind], quote(LABELS[kind])) for kind in kinds),
    ]
    gnuplot("\n".join(script) + "\n")
    return True


# --- curves

def size_tics(xs):
    def name(n):
        for unit, factor in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1024)):
            if n >= factor and n % factor == 0:
                return "%d%s" % (n // factor, unit)
        return str(n)
    return ", ".join("%s %d" % (quote(name(x)), x) for x in xs)


def curve(name, xlabel, rows, path):
    xs = sorted({row.curve[2] for row in rows})
    script, plots = [], []
    for i, kind in enumerate(KINDS):
        points = [(row.curve[2], report.values(row, kind)) for row in rows
                  if report.values(row, kind)]
        if not points:
            continue
        script.append("$data%d << END" % i)
        for (x, v), row in zip(points, [r for r in rows if report.values(r, kind)]):
            script.append("%d %g %g %g" % (x, report.median(row, kind), min(v), max(v)))
        script.append("END")
        plots.append("$data%d using 1:2:3:4 with yerrorlines lw 2 pt 7 ps 0.6 "
                     "lc rgb '%s' title %s" % (i, COLOURS[kind], quote(LABELS[kind])))
    script += header(path, 700, 420, name)
    script += [
        "set logscale xy",
        "set xlabel " + quote(xlabel),
        "set ylabel " + quote(rows[0].unit),
        "set xtics (%s)" % (size_tics(xs) if "size" in xlabel
                            else ", ".join("%d" % x for x in xs)),
        "set xrange [%g:%g]" % (xs[0] / 1.3, xs[-1] * 1.3),
        "set key outside right",
        "plot " + ", ".join(plots),
    ]
    gnuplot("\n".join(script) + "\n")


def plot_all(cases, directory):
    """Returns the names of the files."""
    made = []
    curves = {}
    for number, title, groups in cases:
        name = "case-%d.svg" % number
        if bars(number, title, groups, os.path.join(directory, name)):
            made.append(name)
        for row in (row for group in groups for row in group.rows):
            if row.curve and row.samples:
                curves.setdefault(row.curve[:2], []).append(row)
    for (title, xlabel), rows in curves.items():
        # One point is no curve.
        if len({row.curve[2] for row in rows}) < 2:
            continue
        name = "curve-%s.svg" % re.sub(r"[^a-z0-9]+", "-", title.lower())
        curve(title.partition("-")[2], xlabel, rows, os.path.join(directory, name))
        made.append(name)
    return made
