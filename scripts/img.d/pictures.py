# SPDX-License-Identifier: BSD-3-Clause
"""What map --svg and info --svg draw: asks the plugin, and has svg draw it."""

import os
import sys

import jsontext
import mapping
import programs
import svg
from cli import Failure

LAST_LINE = 1024                # bytes that surely contain it


def check(o):
    if o.output == "json":
        raise Failure("--svg and --output=json cannot be used together")


def draw_map(o, image, begin, end):
    """The part of the disk from BEGIN to END (None: to its end)."""
    check(o)
    if image.format == "raw":
        runs = list(mapping.raw_runs(image))
        size = runs[-1]["start"] + runs[-1]["length"] if runs else 0
    else:
        report = Report(image, o.snapshot)
        runs, size = report.runs(), report.size()
    end = min(size, size if end is None else end)
    begin = min(begin, end)
    title = image.given if o.snapshot is None else \
        'snapshot "%s" of %s' % (svg.printable(o.snapshot), image.given)
    svg.map_picture(mapping.part_of(runs, begin, end), mapping.names_of(image), begin, end,
                    title).write(sys.stdout)


class Report:
    """map= of the disk, or of a snapshot.  It can have any number of lines."""

    def __init__(self, image, snapshot=None):
        self.fd = programs.text_file()
        more = [] if snapshot is None else ["snapshot=" + snapshot]
        image.change("map=/dev/fd/%d" % self.fd, *more, writing=False, fds=[self.fd])

    def runs(self):
        with open(self.fd, encoding="ascii") as f:
            f.seek(0)
            yield from jsontext.lines(f)

    def size(self):
        """Of the disk: where the last run ends."""
        length = os.fstat(self.fd).st_size
        tail = os.pread(self.fd, LAST_LINE, max(0, length - LAST_LINE)).decode("ascii")
        last = jsontext.of_line(tail.strip().rsplit("\n", 1)[-1])
        return last["start"] + last["length"]


def draw_info(o, image, found):
    check(o)
    if o.backing_chain:
        raise Failure("--svg and --backing-chain cannot be used together: map --svg shows "
                      "all files of the chain")
    svg.info_picture(found, maps(image, found)).write(sys.stdout)


def maps(image, found):
    """The disk, and the first snapshots.  An external data file has no snapshots."""
    data = (found.get("format-specific") or {}).get("data", {})
    if image.format != "qcow2" or "data-file" in data:
        return
    yield None, Report(image).runs()
    snapshots = found.get("snapshots", [])
    names = {snapshot["name"] for snapshot in snapshots}
    for snapshot in snapshots[:svg.SNAPSHOTS]:
        # Several can have one name; a name takes precedence over an ID.
        key = snapshot["name"] if snapshot["id"] in names else snapshot["id"]
        yield snapshot["name"], Report(image, key).runs()
