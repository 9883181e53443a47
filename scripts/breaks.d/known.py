# SPDX-License-Identifier: BSD-3-Clause
"""Lists of what is so, and why: tests/coverage-exceptions and tests/mutants-that-survive.

    FILE FUNCTION [RULE]: LINE
    FILE FUNCTION [RULE]: LINE
        The reason, indented.  It is that of all entries directly above it.

LINE is text of the source, not a number: so an entry outlives changes around it.  In
FILE, FUNCTION and LINE, * stands for any text.
"""

import fnmatch
import os
import re

import suite


def fits(pattern, text):
    """Only * is special."""
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))


class Entry:
    def __init__(self, fields):
        self.path, self.function, self.rule, self.text = fields
        self.used = False

    def __str__(self):
        return " ".join(filter(None, (self.path, self.function, self.rule))) + \
            ": " + self.text


class Known:
    def __init__(self, path):
        self.entries = []
        explained = 0           # entries that have a reason
        if not os.path.exists(path):
            return
        with open(path, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                place = "%s:%d: " % (path, number)
                if not line.strip() or line.startswith("#"):
                    continue
                if line.startswith(" "):
                    explained = len(self.entries)
                    continue
                m = re.fullmatch(r"(\S+) ([^\s:]+)(?: ([^\s:]+))?: (.*)", line.rstrip())
                if not m:
                    raise SystemExit(place + "not FILE FUNCTION [RULE]: LINE")
                self.entries.append(Entry((m[1], m[2], m[3] or "", m[4])))
        if explained < len(self.entries):
            raise SystemExit("%s: no reason for %s" % (path, self.entries[-1]))

    def explains(self, path, function, rule, text):
        path = suite.short(path)
        found = False
        for e in self.entries:
            if fits(e.path, path) and fits(e.function, function) and e.rule == rule and \
                    fits(e.text, text):
                e.used = found = True
        return found

    def unused(self):
        return [str(e) for e in self.entries if not e.used]
