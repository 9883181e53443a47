# SPDX-License-Identifier: BSD-3-Clause
"""Breaks the plugin in many small ways, and shows which tests notice: see scripts/mutate.

A mutant is one source, compiled with one change, and linked with the objects of all
others (build/mutate).  If its object equals the unbroken one, nothing has changed.  The
tests that reach the changed line (build/coverage) run until one fails.  What happened is
appended to build/mutate/results, so a run that was interrupted goes on where it was.
"""

import argparse
import collections
import concurrent.futures
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading

import coverage
import known
import rules
import suite

BUILD = os.path.join(suite.TOP, "build", "mutate")
TESTS = os.path.join(BUILD, "tests")
RESULTS = os.path.join(BUILD, "results")
SURVIVORS = os.path.join(suite.TOP, "tests", "mutants-that-survive")
CAUGHT, SURVIVED, SAME, INVALID, UNREACHED, KNOWN = (
    "caught", "survived", "same code", "does not compile", "unreached", "known")
# A mutant may want all memory there is.  (A sanitizer has its own idea of memory.)
LIMIT = ["prlimit", "--data=%d" % (2 << 30)]
# What it takes to see that a rule broke something.
SANITIZERS = {"no-lock": "tsan"}


def all_mutants():
    for path in suite.sources():
        with open(os.path.join(suite.TOP, path), encoding="utf-8") as f:
            yield from rules.Code(path, f.read()).mutants()


def key(mutant):
    return hashlib.sha256((mutant.name + mutant.code.text).encode()).hexdigest()[:16]


def shuffled(mutants):
    """Folders take turns, and in each folder the rules do: the beginning of the list is a
    fair sample.  The order depends on what is changed, not on line numbers."""
    folders = collections.defaultdict(lambda: collections.defaultdict(list))
    for m in mutants:
        folders[suite.folder(m.path)][m.rule].append(m)
    turns = []
    for folder in sorted(folders):
        for rule, some in sorted(folders[folder].items()):
            some.sort(key=lambda m: hashlib.sha256(
                (m.path + m.function + m.rule + m.before() + m.after()).encode()
            ).digest())
        turns.append([m for _, _, m in sorted(
            (turn, hashlib.sha256((folder + rule).encode()).digest(), m)
            for rule, some in folders[folder].items() for turn, m in enumerate(some))])
    return [m for _, _, m in sorted((turn, folder, m) for folder, some in enumerate(turns)
                                    for turn, m in enumerate(some))]


class Tool:
    """Compiles and links mutants."""

    def __init__(self):
        if not os.path.exists(os.path.join(TESTS, "Makefile")):
            raise SystemExit("scripts/mutate builds first: there is no " + TESTS)
        self.compiler = suite.make_variable(
            TESTS, "$(CC) $(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS) "
            "$(door_cflags) $(CFLAGS) -g0 -O1 -w -fPIC").split()
        self.linker = suite.make_variable(
            TESTS, "$(CC) $(AM_CFLAGS) $(CFLAGS) $(AM_LDFLAGS) $(LDFLAGS)").split()
        self.libs = suite.make_variable(TESTS, "$(core_libs) $(LIBS)").split()
        self.flags = {s: suite.make_variable(TESTS, "$(%s_cflags)" % s).split()
                      for s in set(SANITIZERS.values())}
        self.no_aslr = suite.make_variable(TESTS, "$(NO_ASLR)").split()
        flags = suite.make_variable(
            TESTS, "$(foreach t,$(c_tests),$(t) $(call sanitizer_ldflags,$(t));)")
        self.wraps = {f.split()[0]: f.split()[1:] for f in flags.split(";") if f.split()}

    def compile(self, path, text, where, sanitizer):
        """The object of the source TEXT in WHERE, or None if it is no C."""
        source = os.path.join(where, os.path.basename(path))
        with open(source, "w", encoding="utf-8") as f:
            f.write(text)
        done = subprocess.run(
            [*self.compiler, *self.flags.get(sanitizer, []),
             "-ffile-prefix-map=%s=." % where, "-c", "-o", source + ".o", source],
            cwd=TESTS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return source + ".o" if done.returncode == 0 else None

    def test_objects(self, name, mutant, where, sanitizer):
        """The objects of the test, with that of the mutant.  (A test that includes the
        source is compiled again.)"""
        if suite.includes(name, mutant.path):
            copy = os.path.join(where, "include", suite.short(mutant.path))
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            with open(copy, "w", encoding="utf-8") as f:
                f.write(mutant.source())
            out = os.path.join(where, "test.o")
            subprocess.run([self.compiler[0], "-I" + os.path.join(where, "include"),
                            *self.compiler[1:], *self.flags.get(sanitizer, []), "-c",
                            "-o", out, os.path.join(suite.TOP, "tests", name + ".c")],
                           cwd=TESTS, check=True)
            return [out]
        folder, base = os.path.split(name)
        if sanitizer:
            own = [os.path.join(sanitizer, name + ".o")]
        else:
            # Automake may put the program's name before it.
            own = [p for p in (name + ".o", *glob.glob(
                os.path.join(TESTS, folder, "*-" + base + ".o")))
                if os.path.exists(os.path.join(TESTS, p))]
        return [own[0], self.object(mutant, where)]

    def object(self, mutant, where):
        """Where `compile' put it."""
        return os.path.join(where, os.path.basename(mutant.path)) + ".o"

    def program(self, test, mutant, where, sanitizer):
        """TEST with the mutant."""
        name = suite.program_of(test)
        out = os.path.join(where, "program")
        libs = [sanitizer + "/libcore.a"] if sanitizer else \
            ["-Wl,--start-group", ".libs/libtest.a", ".libs/libserver.a",
             ".libs/libdoor.a", "../core/.libs/libqcow2core.a", "-Wl,--end-group"]
        subprocess.run([*self.linker, *self.flags.get(sanitizer, []),
                        *self.wraps[name], "-o", out,
                        *self.test_objects(name, mutant, where, sanitizer), *libs,
                        *self.libs], cwd=TESTS, check=True)
        return out

    def plugin(self, mutant, where):
        """The plugin with the mutant."""
        out = os.path.join(where, "nbdkit-qcow2-plugin.so")
        own = "nbdkit_qcow2_plugin_la-%s.o" % os.path.basename(mutant.path)[:-2]
        objects = [o for o in glob.glob(os.path.join(BUILD, "plugin/.libs",
                                                     "nbdkit_qcow2_plugin_la-*.o"))
                   if os.path.basename(o) != own]
        subprocess.run([*self.linker, "-shared", "-o", out, *objects,
                        self.object(mutant, where), "../core/.libs/libqcow2core.a",
                        *self.libs], cwd=TESTS, check=True)
        return out


class Run:
    def __init__(self, args):
        self.args = args
        self.tool = Tool()
        self.sources, self.tests, old = coverage.load()
        if old:
            print("changed since make coverage: %s: all tests of these files are "
                  "considered" % " ".join(old))
        self.lock = threading.Lock()
        self.kills = collections.Counter()
        self.results = {}
        if os.path.exists(RESULTS):
            with open(RESULTS, encoding="utf-8") as f:
                for line in f:
                    r = json.loads(line)
                    self.results[r["key"]] = r
                    if r["outcome"] == CAUGHT:
                        self.kills[(r["path"], r["test"])] += 1
        self.originals = {}
        self.sanitized = {s: {t[len(s) + 1:] for t in suite.listed(s + "_tests")}
                          for s in set(SANITIZERS.values())}

    def tests_for(self, mutant, sanitizer):
        """The tests that run its lines: those that are likely to notice come first."""
        source = self.sources[mutant.path]
        lines = [n for n in range(mutant.line, mutant.last + 1) if n in source.lines]
        n = mutant.line         # a line may continue a statement
        while not lines and n > mutant.line - 10:
            n -= 1
            lines = [n] if n in source.lines else []
        found = set().union(*(source.tests.get(n, ()) for n in lines)) if lines else \
            source.users
        folder = suite.folder(mutant.path)
        found = [t for t in found if self.tests[t][0] == suite.PASSED and
                 (not sanitizer or t in self.sanitized[sanitizer])]
        if self.args.tests:
            found = [t for t in found if suite.is_wanted(t, self.args.tests)]
        # Short ones, and those that noticed other mutants of this source.
        found.sort(key=lambda t: (
            not suite.is_program(t),
            self.tests[t][1] / (1 + self.kills[(mutant.path, t)]) /
            (3 if t.startswith("unit/" + folder + "/") else 1)))
        left = self.args.budget
        for t in found:
            if left > 0:
                yield t
            left -= self.tests[t][1]

    def original(self, mutant, where, sanitizer):
        """The unbroken object, for comparison."""
        name = (mutant.path, sanitizer)
        if name not in self.originals:
            path = self.tool.compile(mutant.path, mutant.code.text, where, sanitizer)
            with open(path, "rb") as f:
                self.originals[name] = f.read()
        return self.originals[name]

    def judge(self, mutant, where):
        sanitizer = SANITIZERS.get(mutant.rule)
        original = self.original(mutant, where, sanitizer)
        path = self.tool.compile(mutant.path, mutant.source(), where, sanitizer)
        if path is None:
            return INVALID, "", []
        with open(path, "rb") as f:
            if f.read() == original:
                return SAME, "", []
        ran = []
        for test in self.tests_for(mutant, sanitizer):
            program = plugin = None
            if suite.is_program(test):
                program = self.tool.program(test, mutant, where, sanitizer)
            else:
                plugin = self.tool.plugin(mutant, where)
            result, _, tail = suite.run(
                test, BUILD, os.path.join(where, "run"), program, plugin,
                timeout=20 + 5 * self.tests[test][1],
                before=self.tool.no_aslr if sanitizer else LIMIT)
            ran.append(test)
            if result not in (suite.PASSED, suite.SKIPPED):
                said = [l for l in tail.split("\n") if l.strip()]
                return CAUGHT, said[-1][:200] if said else result, ran
        return SURVIVED if ran else UNREACHED, "", ran

    def one(self, mutant):
        k = key(mutant)
        old = self.results.get(k)
        if old and not (self.args.again and old["outcome"] in (SURVIVED, UNREACHED)):
            return mutant, old
        where = os.path.join(BUILD, "work", k)
        shutil.rmtree(where, ignore_errors=True)
        os.makedirs(where)
        outcome, said, ran = self.judge(mutant, where)
        shutil.rmtree(where, ignore_errors=True)
        r = {"key": k, "name": mutant.name, "path": mutant.path, "outcome": outcome,
             "test": ran[-1] if ran else "", "tests": len(ran), "said": said}
        with self.lock:
            self.results[k] = r
            if outcome == CAUGHT:
                self.kills[(mutant.path, r["test"])] += 1
            with open(RESULTS, "a", encoding="utf-8") as f:
                f.write(json.dumps(r) + "\n")
        return mutant, r


def show(mutant):
    return "%s (%s)\n        %s\n     => %s" % (
        mutant.name, mutant.function, mutant.before(), mutant.after())


def chosen(args):
    mutants = list(all_mutants())
    if args.only:
        mutants = [m for m in mutants
                   if any(m.name == o or m.name.startswith(o) for o in args.only)]
        return mutants if args.count is None else shuffled(mutants)[:args.count]
    return shuffled(mutants)[:args.count or 200]


def summary(counts, folders):
    print("\n%-10s %8s %9s %6s %10s" % ("folder", "mutants", "caught", "known", "survived"))
    for folder, c in [*sorted(folders.items()), ("all", counts)]:
        n = c[CAUGHT] + c[KNOWN] + c[SURVIVED] + c[UNREACHED]
        print("%-10s %8d %9d %6d %10d" % (folder, n, c[CAUGHT], c[KNOWN],
                                         c[SURVIVED] + c[UNREACHED]))
    print("\n%d mutants: %d caught, %d survive for a reason in "
          "tests/mutants-that-survive, %d survive; %d more changed no code" %
          (counts[CAUGHT] + counts[KNOWN] + counts[SURVIVED] + counts[UNREACHED],
           counts[CAUGHT], counts[KNOWN], counts[SURVIVED] + counts[UNREACHED],
           counts[SAME] + counts[INVALID]))


def stale():
    """Entries of both lists that no longer name anything in the sources."""
    survivors = known.Known(SURVIVORS)
    exceptions = known.Known(coverage.EXCEPTIONS)
    for m in all_mutants():
        survivors.explains(m.path, m.function, m.rule, m.before())
    for path in suite.sources():
        with open(os.path.join(suite.TOP, path), encoding="utf-8") as f:
            code = rules.Code(path, f.read())
        for start, end, function in code.functions:
            exceptions.explains(code.path, function, "", coverage.NEVER_CALLED)
            for line in code.text[start:end].split("\n"):
                exceptions.explains(code.path, function, "", line.strip())
    return ["tests/mutants-that-survive: " + e for e in survivors.unused()] + \
        ["tests/coverage-exceptions: " + e for e in exceptions.unused()]


def main():
    p = argparse.ArgumentParser(prog="scripts/mutate")
    p.add_argument("--list", action="store_true")
    p.add_argument("--again", action="store_true")
    p.add_argument("--stale", action="store_true")
    p.add_argument("--budget", type=float, default=60)
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--only", action="append")
    # Before it is built: only says what is wrong with the other arguments.
    p.add_argument("--only-parse", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("tests", nargs="*", metavar="[N] [TEST ...]")
    args = p.parse_args()
    args.count = None
    if args.tests and args.tests[0].isdigit():
        args.count = int(args.tests.pop(0))
    if args.stale:
        gone = stale()
        for s in gone:
            print("no longer in the sources: " + s)
        sys.exit(1 if gone else 0)
    if not args.list and not coverage.is_known():
        sys.exit("scripts/mutate: no coverage is known: run make coverage first")
    suite.choose(suite.tests_of_the_core(), args.tests)
    mutants = chosen(args)
    if not mutants:
        sys.exit("scripts/mutate: no mutant's name begins with " +
                 " or ".join(args.only or ()))
    if args.only_parse:
        return
    if args.list:
        for m in mutants:
            print(show(m))
        return
    reasons = known.Known(SURVIVORS)
    run = Run(args)
    counts, folders = collections.Counter(), {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for m, r in pool.map(run.one, mutants):
            outcome = r["outcome"]
            if outcome in (SURVIVED, UNREACHED) and \
                    reasons.explains(m.path, m.function, m.rule, m.before()):
                outcome = KNOWN
            counts[outcome] += 1
            folders.setdefault(suite.folder(m.path), collections.Counter())[outcome] += 1
            if outcome in (SURVIVED, UNREACHED):
                print("%s, %d tests: %s" % (outcome, r["tests"], show(m)), flush=True)
            elif outcome == CAUGHT:
                print("caught by %s: %s" % (r["test"], m.name), flush=True)
            else:
                print("%s: %s" % (outcome, m.name), flush=True)
    summary(counts, folders)
    sys.exit(1 if counts[SURVIVED] + counts[UNREACHED] else 0)


if __name__ == "__main__":
    main()
