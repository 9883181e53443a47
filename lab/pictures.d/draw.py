# SPDX-License-Identifier: BSD-3-Clause
"""Pictures of several panels, by gnuplot, as SVG.

A panel has lines, or bars.  The background is white whatever the viewer's is.  A sample's
spread is drawn from the least to the largest.
"""

import math
import textwrap
from dataclasses import dataclass

import report
from common import gnuplot, quote
from plots import COLOURS, header, size_tics
from servers import LABELS

PUBLISHED = "#222222"
WIDTH, HEIGHT, LINE = 470, 370, 15


@dataclass
class Line:
    label: str
    colour: str
    # (x, y, low, high)
    points: list
    mark: int = 7
    dash: int = 1


@dataclass
class Panel:
    title: str
    x: str
    y: str
    lines: list
    # Where the x axis has names: (x, name); or None, for sizes in bytes.
    tics: list = None
    log: str = "xy"


@dataclass
class Bars:
    title: str
    y: str
    categories: list
    # (label, colour, a (y, low, high) or None for each category)
    series: list
    x: str = ""


# --- from rows

def triple(row, kind):
    """The median and the extremes."""
    values = report.values(row, kind)
    return (report.median(row, kind), min(values), max(values)) if values else None


def line(rows, kind, label=None, x=lambda row: row.curve[2], **style):
    points = [(x(row),) + triple(row, kind) for row in rows if report.values(row, kind)]
    return Line(label or LABELS[kind], COLOURS[kind], points, **style)


def published(label, points, **style):
    """POINTS: (x, y)."""
    return Line(label, PUBLISHED, [(x, y, y, y) for x, y in points],
                **{"mark": 6, "dash": 2, **style})


# --- gnuplot

def text(string):
    """With line breaks."""
    return quote(string.replace("\n", "\0")).replace("\0", "\\n")


def y_axis(values):
    """For bars: from zero, or logarithmic if some would be too small to be seen."""
    low, high = min(values), max(values)
    if high < 20 * low:
        return ["unset logscale y", "set yrange [0:%g]" % (high * 1.25)]
    return ["set logscale y", "set yrange [%g:%g]" % (
        10 ** math.floor(math.log10(low)), high * 3)]


def has_figures(panel):
    """Not only published ones."""
    if isinstance(panel, Bars):
        return any(t for _, _, triples in panel.series for t in triples)
    return any(line.points and line.colour != PUBLISHED for line in panel.lines)


def panel_script(panel, n):
    script, plots = [], []
    lines = [line for line in panel.lines if line.points]
    xs = sorted({point[0] for line in lines for point in line.points})
    for i, line in enumerate(lines):
        name = "$data%d_%d" % (n, i)
        script += [name + " << END"] + ["%g %g %g %g" % p for p in line.points] + ["END"]
        plots.append("%s using 1:2:3:4 with yerrorlines lw 2 dt %d pt %d ps 0.7 "
                     "lc rgb '%s' title %s" % (name, line.dash, line.mark, line.colour,
                                               quote(line.label)))
    script += [
        "set title " + text(panel.title),
        # (A line more: the key comes below.)
        "set xlabel " + text(panel.x + "\n "),
        "set ylabel " + quote(panel.y),
        "set logscale " + panel.log if panel.log else "unset logscale",
        "set xtics (%s)" % (", ".join("%s %g" % (quote(name), x)
                                      for x, name in panel.tics)
                            if panel.tics else size_tics(xs)),
        "set xrange [%g:%g]" % ((xs[0] / 1.3, xs[-1] * 1.3) if "x" in panel.log else
                                (xs[0] - 0.05 * (xs[-1] - xs[0]),
                                 xs[-1] + 0.05 * (xs[-1] - xs[0]))),
        "set yrange [*:*]",
    ]
    return script + ["plot " + ", ".join(plots)]


def bars_script(bars, n):
    script, plots = [], []
    series = [s for s in bars.series if any(s[2])]
    width = 0.8 / len(series)
    for i, (label, colour, triples) in enumerate(series):
        name = "$data%d_%d" % (n, i)
        script.append(name + " << END")
        for category, t in enumerate(triples):
            if t:
                script.append("%g %g %g %g %g %s" % (
                    (category + (i - (len(series) - 1) / 2) * width,) + t + (
                        width * 0.9, quote(report.number(t[0])))))
        script.append("END")
        plots += ["%s using 1:2:3:4:5 with boxerrorbars fs solid noborder lc rgb '%s' "
                  "title %s" % (name, colour, quote(label)),
                  "%s using 1:4:6 with labels offset 0,0.6 font ',9' notitle" % name]
    script += [
        "set errorbars small front lw 1 lc rgb '#000000'",
        "set title " + text(bars.title),
        "set xlabel " + text("\n" * max(c.count("\n") for c in bars.categories)
                             + bars.x + "\n "),
        "set ylabel " + quote(bars.y),
        "unset logscale x",
        "set xtics (%s)" % ", ".join("%s %d" % (text(c), i)
                                     for i, c in enumerate(bars.categories)),
        "set xrange [-0.6:%g]" % (len(bars.categories) - 0.4),
    ] + y_axis([v for s in series for t in s[2] if t for v in t])
    return script + ["plot " + ", ".join(plots)]


def svg(path, title, panels, columns=2, notes=(), width=WIDTH, height=HEIGHT):
    """PANELS are Panel and Bars, row after row; those without figures are left out.
    Returns whether there is a picture."""
    panels = [panel for panel in panels if has_figures(panel)]
    if not panels:
        return False
    lines = -(-len(panels) // columns)
    notes = [part for note in notes
             for part in textwrap.wrap(note, columns * width * 2 // 13)]
    below = LINE * (len(notes) + 1)
    whole = (columns * width, 40 + lines * height + below)
    script = [row for row in header(path, *whole, "") if not row.startswith("set title")]
    script += [
        "set multiplot",
        "set label 1 %s at screen 0.5, screen %g center font ',16'"
        % (quote(title), 1 - 20 / whole[1]),
        "set key outside bottom center horizontal font ',10' maxrows 4",
        "set tics nomirror scale 0.5",
        "set format y '%.10g'",
    ]
    for i, note in enumerate(notes):
        script.append("set label %d %s at screen 0.015, screen %g left font ',10'" % (
            i + 2, quote(note), (below - LINE * (i + 1)) / whole[1]))
    for n, panel in enumerate(panels):
        script += [
            "set origin %g, %g" % (n % columns / columns,
                                   (below + (lines - 1 - n // columns) * height)
                                   / whole[1]),
            "set size %g, %g" % (1 / columns, height / whole[1]),
        ]
        script += (bars_script if isinstance(panel, Bars) else panel_script)(panel, n)
        if n == 0:
            script += ["unset label %d" % (i + 1) for i in range(len(notes) + 1)]
    gnuplot("\n".join(script + ["unset multiplot"]) + "\n")
    return True
