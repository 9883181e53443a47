# SPDX-License-Identifier: BSD-3-Clause
"""The samples of a run: whether anything grew that must not, and curves, by gnuplot, as
SVG."""

import statistics

from common import gnuplot, quote

MIB = 1 << 20
COLOURS = {"lives": "#d95f02", "far": "#7570b3", "house": "#1b7fb5"}
TITLES = {"lives": "one image, many servers", "far": "image behind NBD",
          "house": "directory, one server"}
# A panel: its title, its unit, and what it shows of a sample.
PANELS = (
    ("memory of the server (RSS)", "MiB", lambda s: s["rss"] / MIB),
    ("open descriptors", "", lambda s: s["fds"]),
    ("threads", "", lambda s: s["threads"]),
    ("length of the image files", "MiB", lambda s: s["size"] / MIB),
    ("space allocated to the image files", "MiB", lambda s: s["allocated"] / MIB),
    ("requests so far", "thousands", lambda s: s["requests"] / 1000),
)
# What a server that lives long may grow between the second quarter of its life and the
# last: a quarter, and this much.
SPARE = {"rss": 8 * MIB, "fds": 10, "threads": 40, "size": 16 * MIB,
         "allocated": 16 * MIB}
LONG = 600                      # seconds
POINTS = 90                    # of a curve


def growth(samples):
    """For each figure of the server that lives long: what it was, and what it is."""
    lives = {}
    for s in samples:
        if s["track"] == "house":
            lives.setdefault(s["pid"], []).append(s)
    longest = max(lives.values(), key=len, default=[])
    if not longest or longest[-1]["at"] - longest[0]["at"] < LONG:
        return {}
    n = len(longest) // 4
    return {what: (statistics.median(s[what] for s in longest[n:2 * n]),
                   statistics.median(s[what] for s in longest[-n:])) for what in SPARE}


def creeping(samples):
    return ["%s grew from %d to %d" % (what, a, b)
            for what, (a, b) in growth(samples).items() if b > 1.25 * a + SPARE[what]]


def points(samples, track, value):
    """The most in each part of the time."""
    part, most = (samples[-1]["at"] or 1) / POINTS, {}
    for s in samples:
        if s["track"] == track:
            i = int(s["at"] / part)
            most[i] = max(value(s), most.get(i, 0))
    return ["%.4g %.5g" % ((i + 0.5) * part / 60, y) for i, y in sorted(most.items())]


def draw(samples, title, path):
    tracks = [t for t in COLOURS if any(s["track"] == t for s in samples)]
    script = []
    for i, track in enumerate(tracks):
        for j, (_, _, value) in enumerate(PANELS):
            script.append("$d%d_%d << END" % (i, j))
            script += points(samples, track, value)
            script.append("END")
    script += [
        "set terminal svg noenhanced size 1000,%d background rgb 'white' "
        "font 'sans-serif,11'" % (200 * len(PANELS) + 60),
        "set output " + quote(path),
        "set multiplot layout %d,1 title %s" % (len(PANELS), quote(title)),
        "set border 3", "set tics nomirror", "set grid lt 1 lc rgb '#dddddd'",
        "set yrange [0:*]", "set xrange [0:*]", "set lmargin 9", "set rmargin 28",
        "set key outside right top",
    ]
    for j, (name, unit, _) in enumerate(PANELS):
        script += [
            "set title " + quote(name), "set ylabel " + quote(unit),
            "set xlabel " + quote("minutes" if j == len(PANELS) - 1 else ""),
            "plot " + ", ".join(
                "$d%d_%d using 1:2 with lines lw 1.5 lc rgb '%s' title %s" % (
                    i, j, COLOURS[t], quote(TITLES[t]))
                for i, t in enumerate(tracks))]
    gnuplot("\n".join(script) + "\n")
