# SPDX-License-Identifier: BSD-3-Clause
"""Divides the images among several runs, and joins the reports of these."""

import hashlib
import heapq
import json
import math
import os

from programs import printable
from steps import ERROR, FAILED, OK, SKIPPED, Image

MAX_SHARDS = 1000000


def in_order(names):
    return sorted(names, key=os.fsencode)


def digest(strings):
    return hashlib.sha256(b"".join(os.fsencode(s) + b"\0" for s in strings)).hexdigest()


def weight(name):
    """How long it may take to validate, in bytes."""
    start = 1 << 20             # of nbdkit
    try:
        return start + os.path.getsize(name)
    except OSError:
        return start


def part(names, index, count, weigh):
    """The shard with this index.  All shards compute this alone, with the same result.

    The heaviest image that is left goes to the lightest part, so if all weigh the same
    they are dealt like cards, in the order of their names.
    """
    weights = {name: weigh(name) for name in names}
    parts = [(0, i, []) for i in range(1, min(count, len(names)) + 1)]
    for name in sorted(in_order(names), key=weights.get, reverse=True):
        load, i, have = heapq.heappop(parts)
        have.append(name)
        heapq.heappush(parts, (load + weights[name], i, have))
    return next((have for _, i, have in parts if i == index), [])


def shard_of(o):
    """What a report tells about its shard: enough to find those of the same run."""
    index, count = o.shard
    sums = o.sums and digest(x for name in in_order(o.sums) for x in (name, o.sums[name]))
    return {
        "index": index, "count": count,
        "images": len(o.images), "list": digest(in_order(o.images)),
        "options": {"balance": o.balance, "check": o.check, "fsck": o.fsck,
                    "hash": o.hash, "no-leaks": o.no_leaks, "no-read": o.no_read,
                    "policy": o.policy and o.policy.digest(),
                    "sha256": o.sha256, "sums": sums},
    }


class Shard:
    """One report."""

    def __init__(self, path):
        self.path = path
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as f:
                report = json.load(f)
            self.images = [image_of(i) for i in report["images"]]
            self.run = report.get("shard")      # what must be the same in all reports
            if self.run is not None:
                self.index = self.run.pop("index")
                demand(isinstance(self.run["list"], str))
                demand(isinstance(self.run["options"]["balance"], bool))
                demand(all(type(n) is int for n in (self.index, self.run["count"],
                                                    self.run["images"])))
                demand(1 <= self.index <= self.run["count"] <= MAX_SHARDS)
        except OSError as e:
            raise ValueError("%s: %s" % (printable(path), e.strerror))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise ValueError("%s: not a report that --json has written"
                             % printable(path))
        if self.run is None:
            raise ValueError("%s: not the report of a shard (--shard)" % printable(path))


def demand(condition):
    if not condition:
        raise ValueError


def image_of(entry):
    """The opposite of as_json."""
    image = Image(entry["image"], None)
    os.fsencode(image.name)     # that can be done
    image.steps = [(s["name"], s["status"], s["message"], float(s["seconds"]))
                   for s in entry["steps"]]
    demand(image.steps)
    for name, status, message, seconds in image.steps:
        demand(isinstance(name, str) and isinstance(message, str) and
               status in (OK, FAILED, ERROR, SKIPPED) and math.isfinite(seconds))
    image.sha256, image.report = entry["sha256"], entry["check"]
    if "findings" in entry:
        image.findings = [(f["code"], f["message"]) for f in entry["findings"]]
    return image


def error_of(name, step, message):
    image = Image(name, None)
    image.steps.append((step, ERROR, message, 0))
    return image


def read_shards(paths):
    """By index."""
    shards = {}
    for path in paths:
        s = Shard(path)
        first = next(iter(shards.values()), s)
        both = "%s and %s" % (printable(first.path), printable(path))
        for key, what in (("count", "different numbers of shards"),
                          ("list", "different lists of images"),
                          ("options", "different options")):
            if s.run[key] != first.run[key]:
                raise ValueError("%s: reports of runs with %s" % (both, what))
        if s.index in shards:
            raise ValueError("%s and %s: two reports of shard %d/%d" % (
                printable(shards[s.index].path), printable(path), s.index,
                s.run["count"]))
        shards[s.index] = s
    return shards


def merge(paths):
    """All images of the shards, and an entry for all that is not as it should be."""
    shards = read_shards(paths)
    run = next(iter(shards.values())).run
    images, where, wrong = [], {}, []
    for index, s in sorted(shards.items()):
        images += s.images
        for i in s.images:
            where.setdefault(i.name, []).append(index)
    for name in in_order(where):
        if len(where[name]) > 1:
            wrong.append(error_of(name, "shards", "more than one shard validated it: "
                                  + ", ".join(map(str, where[name]))))
    for index in range(1, run["count"] + 1):
        if index not in shards:
            wrong.append(error_of("shard %d/%d" % (index, run["count"]), "report",
                                  "no report of this shard was given"))
    if len(shards) == run["count"] and digest(in_order(where)) != run["list"]:
        wrong.append(error_of("shards", "images", "the reports have %d of %d images%s" % (
            len(where), run["images"],
            ": did the size of a file change?" if run["options"]["balance"] else "")))
    return sorted(images, key=lambda i: os.fsencode(i.name)) + wrong
