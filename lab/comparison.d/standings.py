# SPDX-License-Identifier: BSD-3-Clause
"""The table, the JSON file and the picture.

A ratio is the plugin's speed divided by a rival's in the same turn.  The table shows the
median over all turns and the extremes (of many turns, the middle half).  A rival whose median is faster than the plugin is
marked, and listed at the end.
"""

import json
import os
import statistics

import machine
import plots
import report
from common import gnuplot, quote

LOST = "!"

# The plugin, measured once more in each turn.
SELF = "self"

number = report.number


def spread(row, name):
    return report.spread([ours / theirs for theirs, ours in row.samples.get(name, [])
                          if ours and theirs])


def median(row, contestant):
    values = sorted(v for v, _ in row.samples.get(contestant.name, []))
    return statistics.median(values) if values else None


def reason(row, contestant):
    """Why there is no figure, or nothing."""
    if contestant.missing:
        return contestant.missing
    said = [contestant.cannot[need] for need in row.needs if need in contestant.cannot]
    return (said or [row.skipped.get(contestant.name)])[0]


def short(n):
    return "%.0f" % n if n >= 100 else "%.1f" % n if n >= 10 else "%.2f" % n


# --- text

def rivals(plan):
    """Who there is, and who is not."""
    for title, field, _ in plan:
        yield title + ":"
        for contestant in field:
            yield "  " + contestant.name + (
                ": not here: " + contestant.missing if contestant.missing else "")


def row_lines(row, field):
    yield ""
    yield "%s (%s)" % (row.name, row.unit)
    for contestant in field:
        value, r = median(row, contestant), spread(row, contestant.name)
        if value is None:
            why = reason(row, contestant)
            if not contestant.missing:
                yield "  %-46s %10s   (%s)" % (contestant.name, "-", why)
        elif contestant is field[0]:
            yield "  %-46s %10s" % (contestant.name, number(value))
        elif r is None:
            yield "  %-46s %10s   (the plugin has no figure)" % (contestant.name,
                                                                number(value))
        else:
            yield "  %-46s %10s %7s%s (%s..%s)" % (
                contestant.name, number(value), short(r["median"]),
                LOST if r["median"] < 1 else " ", short(r["low"]), short(r["high"]))


def measured(groups):
    return [row for group in groups for row in group.rows
            if not row.noisy and (row.samples or row.skipped)]


def own_ratio(row):
    """What equal servers made of each other."""
    own = spread(row, SELF)
    return short(own["median"]) if own else "-"


def matrix(field, groups):
    """Ratios only: a line for each row, a column for each rival."""
    present = [c for c in field[1:] if not c.missing]
    if not present:
        return
    yield ""
    for i, contestant in enumerate(present):
        yield "  %s  %s" % (chr(ord("A") + i), contestant.name)
    yield "  self  the plugin itself, once more"
    yield ""
    yield ("%-42s" % "" + "".join(
        "%6s " % chr(ord("A") + i) for i in range(len(present))) + "  self")
    for row in measured(groups):
        cells = []
        for contestant in present:
            r = spread(row, contestant.name)
            cells.append("%6s " % "-" if r is None else "%6s%s" % (
                short(r["median"]), LOST if r["median"] < 1 else " "))
        yield "%-42s%s%6s" % (row.name.replace("in process: ", ""), "".join(cells),
                              own_ratio(row))


def losses(plan):
    for _, field, groups in plan:
        for row in measured(groups):
            for contestant in field[1:]:
                r = spread(row, contestant.name)
                if r and r["median"] < 1:
                    yield "  %-44s %-46s %s (%s..%s)" % (
                        row.name, contestant.name, short(r["median"]), short(r["low"]),
                        short(r["high"]))


def table(plan, settings):
    yield from machine.lines(settings["machine"])
    yield ("%d rounds, samples of %g s, disks of %d MiB; N x D: N connections with D "
           "requests in flight"
           % (settings["rounds"], settings["seconds"], settings["size_bytes"] >> 20))
    if settings["threads"]:
        yield "nbdkit -t %d" % settings["threads"]
    yield ("Ratios: the plugin's speed divided by the rival's in the same turn, as the "
           "median and (the extremes), or of %d turns and more (the middle half); %s where "
           "the plugin is slower." % (report.MANY, LOST))
    for title, field, groups in plan:
        yield ""
        yield "== " + title
        for row in measured(groups):
            yield from row_lines(row, field)
        yield from matrix(field, groups)
    missing = [(c.name, c.missing) for _, field, _ in plan for c in field if c.missing]
    if missing:
        yield ""
        yield "Not measured:"
        for name, why in missing:
            yield "  %s: %s" % (name, why)
    noisy = [row.name for _, _, groups in plan for group in groups for row in group.rows
             if row.noisy]
    if noisy:
        yield ""
        yield "No figure, because equal servers differed too much:"
        for name in noisy:
            yield "  " + name
    lost = list(losses(plan))
    yield ""
    yield "The plugin is slower than:" if lost else "The plugin is nowhere slower."
    yield from lost


# --- for programs

def to_json(plan, settings):
    out = dict(settings, parts=[])
    for title, field, groups in plan:
        out["parts"].append({
            "title": title,
            "rivals": [{"name": c.name, "missing": c.missing} for c in field],
            "rows": [{
                "name": row.name, "unit": row.unit,
                "median": {c.name: median(row, c) for c in field if median(row, c)},
                "ratio": {c.name: spread(row, c.name) for c in field[1:] if spread(row, c.name)},
                "self": spread(row, SELF),
                "samples": row.samples,
                "missing": {c.name: reason(row, c) for c in field
                            if median(row, c) is None},
            } for row in measured(groups)]})
    return json.dumps(out, indent=1) + "\n"


# --- the picture

def colours(field):
    """One hue for each program, darker for newer versions."""
    hues = ["#888888", "#fdd0a2", "#fdae6b", "#fd8d3c", "#e6550d", "#c7e9c0", "#a1d99b",
            "#74c476", "#31a354", "#dadaeb", "#bcbddc", "#9e9ac8", "#756bb1", "#c994c7",
            "#e7298a"]
    return {c.name: hues[i % len(hues)] for i, c in enumerate(field)}


def picture(plan, path):
    """How many times as fast as each rival the plugin is: a bar for each, on a scale of
    powers, beginning at 1.  Bars to the left are losses."""
    title, field, groups = plan[0]
    present = [c for c in field[1:] if not c.missing]
    lines = [row for row in measured(groups) if any(spread(row, c.name) for c in present)]
    if not lines:
        return False
    colour, width = colours(present), 0.8 / len(present)
    script, low, high = ["$bars << END"], 0.8, 1.25
    for i, row in enumerate(lines):
        for j, contestant in enumerate(present):
            r = spread(row, contestant.name)
            if r is None:
                continue
            y = i + (j - (len(present) - 1) / 2) * width
            m = r["median"]
            low, high = min(low, m), max(high, m)
            script.append("%g %g %g %g %g %g %d" % (
                m, y, min(1, m), max(1, m), y - width * 0.45, y + width * 0.45,
                int(colour[contestant.name][1:], 16)))
    script.append("END")
    script += plots.header(path, 1000, 180 + 7 * len(lines) * len(present),
                           "How many times as fast as each rival the plugin is "
                           "(bars to the left: slower)")
    script += [
        "set logscale x 2",
        "set xrange [%g:%g]" % (low / 1.1, high * 1.1),
        "set yrange [%g:-0.7]" % (len(lines) - 0.3),
        "set ytics (%s) scale 0" % ", ".join(
            "%s %d" % (quote(row.name), i) for i, row in enumerate(lines)),
        "set key below maxcols 3 samplen 2",
        "set arrow from 1, graph 0 to 1, graph 1 nohead lc rgb '#000000' front",
        "set style fill solid 1 noborder",
        "plot $bars using 1:2:3:4:5:6:7 with boxxyerror lc rgb variable notitle, "
        + ", ".join("NaN with boxes fs solid lc rgb '%s' title %s"
                    % (colour[c.name], quote(c.name)) for c in present),
    ]
    gnuplot("\n".join(script) + "\n")
    return True


def write(plan, settings, out):
    if not any(row.samples for _, _, groups in plan for g in groups for row in g.rows):
        return
    text = "\n".join(table(plan, settings))
    print(text, flush=True)
    with open(os.path.join(out, "table.txt"), "w", encoding="utf-8") as f:
        f.write(text + "\n")
    with open(os.path.join(out, "results.json"), "w", encoding="utf-8") as f:
        f.write(to_json(plan, settings))
    made = ["table.txt", "results.json"]
    if picture(plan, os.path.join(out, "comparison.svg")):
        made.append("comparison.svg")
    print("\n%s: %s" % (out, " ".join(made)), flush=True)
