# SPDX-License-Identifier: BSD-3-Clause
"""Writes results as TAP, JSON and JUnit."""

import json
import os
import sys
from xml.sax.saxutils import quoteattr

from programs import lines_of, printable
from steps import ERROR, FAILED, OK, SKIPPED


class Tap:
    """Counts and prints, image by image."""

    def __init__(self):
        self.n = 0
        print("TAP version 13")

    def tell(self, image):
        for name, status, message, _ in image.steps:
            self.n += 1
            # A # would begin a directive.
            title = "%s: %s" % (printable(image.name).replace("#", "\\x23"), name)
            print("%s %d - %s%s" % ("ok" if status in (OK, SKIPPED) else "not ok",
                                    self.n, title,
                                    " # SKIP " + printable(message).replace("#", "")
                                    if status == SKIPPED else ""))
            if status != SKIPPED:
                for line in lines_of(message):
                    print("# " + line)
        sys.stdout.flush()

    def end(self):
        print("1..%d%s" % (self.n, "" if self.n else " # SKIP no image"))


def replace_file(name, text):
    """At once, or not at all."""
    if os.path.exists(name) and not os.path.isfile(name):
        with open(name, "w", encoding="utf-8") as f:
            f.write(text)
        return
    name = os.path.realpath(name)
    # Not the number of this process: in another container another one may have it.
    temporary = "%s.%s.tmp" % (name, os.urandom(8).hex())
    with open(temporary, "x", encoding="utf-8") as f:
        try:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
            os.rename(temporary, name)
        except BaseException:
            os.unlink(temporary)
            raise


def as_json(images, shard):
    counts = [i.status() for i in images]
    return json.dumps({
        **({"shard": shard} if shard else {}),
        "valid": counts.count(OK), "invalid": counts.count(FAILED),
        "errors": counts.count(ERROR),
        "images": [{
            "image": i.name,
            "verdict": {OK: "valid", FAILED: "invalid", ERROR: "error"}[i.status()],
            "sha256": i.sha256,
            "steps": [{"name": n, "status": s, "message": m,
                       "seconds": round(t, 3)} for n, s, m, t in i.steps],
            **({} if i.findings is None else {"findings": [
                {"code": code, "message": text} for code, text in i.findings]}),
            "check": i.report,
        } for i in images],
    }, indent=2) + "\n"


def as_junit(images):
    def attr(text):
        return quoteattr(printable(text))

    out = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for i in images:
        have = [s[1] for s in i.steps]
        out.append('  <testsuite name=%s tests="%d" failures="%d" errors="%d" '
                   'skipped="%d" time="%.3f">' % (
                       attr(i.name), len(have), have.count(FAILED),
                       have.count(ERROR), have.count(SKIPPED),
                       sum(s[3] for s in i.steps)))
        for name, status, message, seconds in i.steps:
            out.append('    <testcase classname=%s name=%s time="%.3f">' % (
                attr(i.name), attr(name), seconds))
            tag = {FAILED: "failure", ERROR: "error", SKIPPED: "skipped"}.get(status)
            if tag:
                out.append("      <%s message=%s/>" % (
                    tag, attr(" ".join(lines_of(message)))))
            out.append("    </testcase>")
        out.append("  </testsuite>")
    out.append("</testsuites>")
    return "\n".join(out) + "\n"
