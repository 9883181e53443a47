# SPDX-License-Identifier: BSD-3-Clause
"""From samples to figures: medians, ratios, the table, the JSON file.

A ratio says how many times better the plugin is than another server: above 1 it is
better, whether more is better or less.  It is the median of the ratios of each
turn: servers are measured in turn, so what disturbs one disturbs all of them.  Its
spread is the smallest and the largest of those, or the middle half of them if there are
MANY: the extremes of many only tell how many there were.
"""

import json
import statistics

from rows import LESS
from servers import BEFORE, KINDS, LABELS, LIMIT, PLUGIN, QEMU, SELF

MANY = 8


def values(row, kind):
    return [s.value for s in row.samples.get(kind, []) if s]


def median(row, kind):
    v = values(row, kind)
    return statistics.median(v) if v else None


def rss(row, kind):
    v = [s.rss for s in row.samples.get(kind, []) if s and s.rss]
    return statistics.median(v) if v else None


def quotients(better, ours, theirs):
    """Of turns in which both have a sample."""
    q = []
    for a, b in zip(ours, theirs):
        if a and b and a.value and b.value:
            q.append(b.value / a.value if better == LESS else a.value / b.value)
    return q


def spread(q):
    if not q:
        return None
    low, high = min(q), max(q)
    if len(q) >= MANY:
        low, _, high = statistics.quantiles(q, n=4, method="inclusive")
    return {"median": statistics.median(q), "low": low, "high": high, "turns": len(q)}


def ratio(row, kind):
    return spread(quotients(row.better, row.samples.get(PLUGIN, []),
                            row.samples.get(kind, [])))


def reference(row):
    """Which server is measured twice."""
    return LIMIT if LIMIT in row.kinds else QEMU


def ratio_to_itself(row):
    """Of equal servers."""
    return spread(quotients(row.better, row.samples.get(SELF, []),
                            row.samples.get(reference(row), [])))


def ratio_against(row):
    """The plugin in this row against the plugin in another one."""
    if row.against is None:
        return None
    return spread(quotients(row.better, row.samples.get(PLUGIN, []),
                            row.against.samples.get(PLUGIN, [])))


def to_json(cases, settings):
    out = dict(settings)
    out["cases"] = []
    for number, title, groups in cases:
        case = {"case": number, "title": title, "groups": []}
        out["cases"].append(case)
        for group in groups:
            g = {"title": group.title, "rows": []}
            case["groups"].append(g)
            for row in group.rows:
                r = {"name": row.name, "unit": row.unit, "better": row.better,
                     "median": {}, "samples": {}, "peak_rss_bytes": {}, "ratio": {}}
                for kind in KINDS + (BEFORE,):
                    if values(row, kind):
                        r["median"][kind] = median(row, kind)
                        r["samples"][kind] = values(row, kind)
                        if rss(row, kind):
                            r["peak_rss_bytes"][kind] = rss(row, kind)
                for kind in (LIMIT, QEMU, BEFORE):
                    if ratio(row, kind):
                        r["ratio"][kind] = ratio(row, kind)
                if ratio_to_itself(row):
                    r["self"] = ratio_to_itself(row)
                if row.noisy:
                    r["noisy"] = row.noisy
                if row.goals:
                    r["goals"] = row.goals
                if ratio_against(row):
                    r["against"] = dict(ratio_against(row), row=row.against.name,
                                        goal=row.against_goal)
                if row.skipped:
                    r["skipped"] = row.skipped
                g["rows"].append(r)
    return json.dumps(out, indent=1) + "\n"


# --- the table

def number(n):
    if n is None:
        return "-"
    if n >= 100:
        return "{:,.0f}".format(n)
    return "%.1f" % n if n >= 10 else "%.3g" % n


def ratio_text(r, goal):
    if not r:
        return "-"
    short = lambda n: "%.0f" % n if n >= 100 else "%.1f" % n if n >= 10 else "%.2f" % n
    missed = "!" if goal is not None and r["median"] < goal else " "
    brackets = "%s%s [%s..%s]" if r["turns"] >= MANY else "%s%s (%s..%s)"
    return brackets % (short(r["median"]), missed, short(r["low"]), short(r["high"]))


COLUMNS = "%-58s %10s %10s %10s %-6s %-20s %-20s %-20s %8s%s"


def table(cases, settings, machine_lines):
    """Yields lines."""
    for line in machine_lines:
        yield line
    yield ("%s page cache, %d round%s, samples of %g s; qemu-nbd %s"
           % ("cold" if settings["cold"] else "warm", settings["rounds"],
              "" if settings["rounds"] == 1 else "s",
              settings["seconds"], settings["qemu_options"]))
    yield ("Ratios: how many times better the plugin is, as the median; (the extremes), or "
           "[the middle half] of %d turns and more; ! where a goal is missed.  self: the "
           "first server, measured twice in each turn, to itself." % MANY)
    for number_, title, groups in cases:
        yield ""
        yield "%d. %s" % (number_, title)
        for group in groups:
            yield from group_table(group)


def group_table(group):
    measured = [row for row in group.rows
                if not row.noisy and any(values(row, k) for k in KINDS)]
    before = any(values(row, BEFORE) for row in measured)
    first = group.reference
    yield ""
    if measured:
        yield COLUMNS % ("  " + group.title, LABELS[first], LABELS[QEMU], LABELS[PLUGIN],
                         "", "to the limit" if first == LIMIT else "to " + LABELS[first],
                         "to qemu-nbd", "self", "MiB", "  to before" if before else "")
    else:
        yield "  " + group.title
    for row in measured:
        memory = rss(row, PLUGIN)
        yield (COLUMNS % (
            "  " + row.name, number(median(row, first)), number(median(row, QEMU)),
            number(median(row, PLUGIN)), row.unit,
            ratio_text(ratio(row, first), row.goals.get(first)),
            ratio_text(ratio(row, QEMU), row.goals.get(QEMU)),
            ratio_text(ratio_to_itself(row), None),
            number(memory and memory / (1 << 20)),
            "  " + ratio_text(ratio(row, BEFORE), None) if before else "")).rstrip()
        against = ratio_against(row)
        if against:
            yield "    the plugin here against the plugin in \"%s\": %s" % (
                row.against.name, ratio_text(against, row.against_goal))
    missing = {}
    for row in group.rows:
        for kind, reason in row.skipped.items():
            missing.setdefault((kind, reason), []).append(row.name)
    for row in group.rows:
        if row.noisy:
            yield ("    no figure: %s: equal servers differed, %.2f: the machine was busy"
                   % (row.name, row.noisy))
    for (kind, reason), names in missing.items():
        more = " and %d more" % (len(names) - 1) if len(names) > 1 else ""
        yield "    no figure%s: %s%s: %s" % (
            kind and " for " + LABELS[kind], names[0], more, reason)
