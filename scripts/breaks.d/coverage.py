# SPDX-License-Identifier: BSD-3-Clause
"""Which lines of the plugin tests reach, and what none reaches: see scripts/coverage.

Each test leaves a file in build/coverage/reached, which says for each source how often
each line and each branch of it ran.  So tests can be run again one by one, and
scripts/mutate knows which tests can notice a change of a line.
"""

import argparse
import concurrent.futures
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys

import known
import suite

BUILD = os.path.join(suite.TOP, "build", "coverage")
REACHED = os.path.join(BUILD, "reached")
EXCEPTIONS = os.path.join(suite.TOP, "tests", "coverage-exceptions")
# What makes a line part of an error path.
ERROR_WORDS = ("return -1;", "return NULL;", "return -errno", "report_error (",
               "errno = ", "goto ", "report_")

# With a limit on the size of files, no counters can be written.
UNMEASURABLE = {"serve/file-size-limit.sh"}

NEVER_CALLED = "(never called)"         # in place of a line
# Random tests do the same each time; those that go on for some seconds, and those in which
# memory runs out or operations fail, do more than in "make check".  (For bash, SECONDS is
# something else.)
ENVIRONMENT = {"QCOW2_TEST_SEED": "1", "QCOW2_TEST_LONG": "1", "ALLOCATIONS": "40",
               "FAULTS": "300"}
FOR_PROGRAMS = {"SECONDS": "30"}
# These choose allocations of all places.
THOROUGH = ("crash/each-failure",)


def digest(path):
    with open(os.path.join(suite.TOP, path), "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()[:16]


def file_of(test):
    return os.path.join(REACHED, test.replace("/", ".") + ".json")


# --- running a test

def gcov(prefix):
    """What gcc's counters below PREFIX say: {source: {...}}."""
    # (Some tests include a source.)
    counters = sorted(
        glob.glob(prefix + BUILD + "/core/*/.libs/*.gcda") +
        glob.glob(prefix + BUILD + "/plugin/.libs/*.gcda") +
        glob.glob(prefix + BUILD + "/tests/*/*/*.gcda"))
    sources = {}
    if not counters:
        return sources
    for counter in counters:
        notes = counter[len(prefix):-len("gcda")] + "gcno"
        link = counter[:-len("gcda")] + "gcno"
        if not os.path.exists(link):
            os.symlink(notes, link)
    done = subprocess.run(["gcov", "--json-format", "--stdout", "-b", *counters],
                          cwd=prefix, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, check=True)
    for line in done.stdout.splitlines():
        if not line.startswith(b"{"):
            continue
        unit = json.loads(line)
        for f in unit["files"]:
            path = os.path.normpath(os.path.join(unit["current_working_directory"],
                                                 f["file"]))
            path = os.path.relpath(path, suite.TOP)
            if not path.startswith(suite.SOURCES) or not path.endswith(".c"):
                continue
            s = sources.setdefault(path, {"digest": digest(path), "functions": [],
                                          "lines": {}, "branches": {}})
            s["functions"] = [[g["start_line"], g["end_line"], g["name"]]
                              for g in f["functions"]]
            for l in f["lines"]:
                n = str(l["line_number"])
                s["lines"][n] = s["lines"].get(n, 0) + l["count"]
                counts = [b["count"] for b in l["branches"]]
                old = s["branches"].get(n, [])
                if counts:
                    s["branches"][n] = [a + b for a, b in zip(old, counts)] \
                        if old else counts
    return sources


def measure(test):
    """Runs TEST, and writes what it reached."""
    where = os.path.join(BUILD, "run", test.replace("/", "."))
    prefix = where + ".counters"
    shutil.rmtree(prefix, ignore_errors=True)
    env = dict(ENVIRONMENT, **(FOR_PROGRAMS if suite.is_program(test) else {}))
    env.update((k, os.environ[k]) for k in env if k in os.environ)
    if test.endswith(THOROUGH):
        del env["ALLOCATIONS"]
    result, seconds, tail = suite.run(test, BUILD, where,
                                      env=dict(env, GCOV_PREFIX=prefix))
    with open(file_of(test) + ".new", "w", encoding="utf-8") as f:
        json.dump({"test": test, "result": result, "seconds": round(seconds, 2),
                   "sources": gcov(prefix)}, f)
    os.rename(file_of(test) + ".new", file_of(test))
    shutil.rmtree(prefix, ignore_errors=True)
    return test, result, seconds, tail


# --- what all tests reached

class Source:
    """A file of the plugin."""

    def __init__(self, path):
        self.path = path
        self.functions = []
        self.lines = {}         # line: times that it ran
        self.branches = {}      # line: times that each branch was taken
        self.tests = {}         # line: tests that run it
        self.users = set()      # tests that run some line, even before it was changed
        with open(os.path.join(suite.TOP, path), encoding="utf-8") as f:
            self.text = f.read().split("\n")

    def use(self, test, reached):
        if any(reached["lines"].values()):
            self.users.add(test)

    def add(self, test, reached):
        self.functions = reached["functions"]
        for n, count in reached["lines"].items():
            self.lines[int(n)] = self.lines.get(int(n), 0) + count
            if count > 0:
                self.tests.setdefault(int(n), set()).add(test)
        for n, counts in reached["branches"].items():
            old = self.branches.get(int(n))
            self.branches[int(n)] = \
                [a + b for a, b in zip(old, counts)] if old else counts

    def function(self, line):
        for start, end, name in self.functions:
            if start <= line <= end:
                return name
        return "?"

    def unreached_errors(self):
        """Runs of lines that no test reaches, and which handle an error: as pairs of the
        function and the line of the source that says which."""
        runs = []
        for n in sorted(self.lines):
            if self.lines[n] > 0:
                runs.append(None)
            elif runs and runs[-1] and self.function(runs[-1][-1]) == self.function(n):
                runs[-1].append(n)
            else:
                runs.append([n])
        for run in filter(None, runs):
            if self.lines_of(run[0]) == 0:      # a function that nothing calls
                yield run[0], self.function(run[0]), NEVER_CALLED
                continue
            words = "\n".join(self.text[run[0] - 1:run[-1]])
            if any(w in words for w in ERROR_WORDS):
                yield run[0], self.function(run[0]), self.condition(run[0])

    def lines_of(self, line):
        """How often the function of LINE was called."""
        name = self.function(line)
        for start, end, f in self.functions:
            if f == name:
                return max((c for n, c in self.lines.items() if start <= n <= end),
                           default=0)
        return 0

    def condition(self, line):
        """The line before LINE that guards it: the last one that is indented less."""
        def indent(s):
            return len(s) - len(s.lstrip())
        own = indent(self.text[line - 1])
        n = line - 1
        while n > 1 and (not self.text[n - 1].strip() or
                         indent(self.text[n - 1]) >= own):
            n -= 1
        # The beginning of a condition of several lines.
        while "if (" not in self.text[n - 1] and n > 1 and \
                self.text[n - 1].startswith("      ") and "else" not in self.text[n - 1] \
                and self.text[n - 1].rstrip()[-1:] in ")&|,=" and \
                line - n < 8:
            n -= 1
        guard = self.text[n - 1].strip()
        return guard if guard not in ("{", "") else self.text[line - 1].strip()


def load():
    """All sources, and {test: (result, seconds)}."""
    sources, tests, digests, old = {}, {}, {}, set()
    for path in suite.sources():
        sources[path] = Source(path)
        digests[path] = digest(path)
    for name in sorted(glob.glob(os.path.join(REACHED, "*.json"))):
        with open(name, encoding="utf-8") as f:
            data = json.load(f)
        tests[data["test"]] = (data["result"], data["seconds"])
        for path, reached in data["sources"].items():
            if path in sources:
                sources[path].use(data["test"], reached)
            if digests.get(path) == reached["digest"]:
                sources[path].add(data["test"], reached)
            else:
                old.add(path)
    return sources, tests, sorted(old)


def is_known():
    """Has any test run?"""
    return bool(glob.glob(os.path.join(REACHED, "*.json")))


# --- the report

def percent(part, all_of_it):
    return "%5.1f %%" % (100 * part / all_of_it) if all_of_it else "      -"


def table(sources):
    print("%-10s %7s %9s %8s %9s %9s" %
          ("folder", "lines", "reached", "", "branches", "taken"))
    total = [0] * 4
    folders = {}
    for s in sources.values():
        folder = folders.setdefault(suite.folder(s.path), [0] * 4)
        for row in (folder, total):
            row[0] += len(s.lines)
            row[1] += sum(1 for c in s.lines.values() if c > 0)
            row[2] += sum(len(b) for b in s.branches.values())
            row[3] += sum(1 for b in s.branches.values() for c in b if c > 0)
    for name, row in [*sorted(folders.items()), ("all", total)]:
        print("%-10s %7d %9d %s %9d %9d %s" %
              (name, row[0], row[1], percent(row[1], row[0]), row[2], row[3],
               percent(row[3], row[2])))


def report(sources, old):
    """Prints the table and the error paths that no test reaches.  Is nothing wrong?"""
    table(sources)
    if old:
        print("\nchanged since tests ran, so without their counts: " + " ".join(old))
    exceptions = known.Known(EXCEPTIONS)
    unreached = []
    excused = 0
    for s in sources.values():
        if not s.path.startswith("plugin/"):
            for line, function, text in s.unreached_errors():
                if exceptions.explains(s.path, function, "", text):
                    excused += 1
                else:
                    unreached.append("%s:%d: %s: %s" % (s.path, line, function, text))
    print("\nerror paths of the core that no test reaches: %d, and %d with a reason in "
          "tests/coverage-exceptions" % (len(unreached), excused))
    for u in unreached:
        print("    " + u)
    stale = [] if old else exceptions.unused()
    for s in stale:
        print("no longer so: tests/coverage-exceptions: " + s)
    return not unreached and not stale


def main():
    p = argparse.ArgumentParser(prog="scripts/coverage")
    p.add_argument("--report", action="store_true")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--missing", action="store_true")
    # Before it is built: only says what is wrong with the other arguments.
    p.add_argument("--only-parse", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("tests", nargs="*", metavar="TEST")
    args = p.parse_args()
    if args.report and not is_known():
        sys.exit("scripts/coverage: nothing has run yet: run make coverage first")
    measurable = [t for t in suite.tests_of_the_core() if t not in UNMEASURABLE]
    wanted = suite.choose(measurable, args.tests)
    if args.only_parse:
        return
    os.makedirs(REACHED, exist_ok=True)
    failed = 0
    if args.missing:
        wanted = [t for t in wanted if not os.path.exists(file_of(t))]
    if not args.report:
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for test, result, seconds, tail in pool.map(measure, wanted):
                print("%-7s %6.1f s  %s" % (result, seconds, test), flush=True)
                if result not in (suite.PASSED, suite.SKIPPED):
                    failed += 1
                    print("        " + tail.strip().replace("\n", "\n        "))
        print()
    sources, tests, old = load()
    print("%d tests" % len(tests))
    good = report(sources, old)
    if failed:
        print("%d tests failed" % failed)
    sys.exit(0 if good and not failed else 1)


if __name__ == "__main__":
    main()
