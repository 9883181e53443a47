# SPDX-License-Identifier: BSD-3-Clause
"""The tests of a build directory, run outside of make check: which there are, where they
run, and how they end.  Used by scripts/coverage and scripts/mutate."""

import glob
import os
import re
import shutil
import signal
import subprocess
import time

TOP = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                    "..", ".."))
TIMEOUT = 900                   # seconds, as in tests/Makefile.am
PASSED, FAILED, SKIPPED, HANGS = "passed", "failed", "skipped", "hangs"
SOURCES = ("core/", "plugin/")
# These say nothing about the core, or need programs that few have.
ELSEWHERE = ("engines/", "project/")


def listed(variable):
    """The value of a list in tests/Makefile.am."""
    with open(os.path.join(TOP, "tests", "Makefile.am"), encoding="utf-8") as f:
        text = f.read()
    found = re.search(r"^%s = \\\n((?:\t.*\\\n)+)" % variable, text, re.M)
    return [w for w in found.group(1).replace("\\", " ").split() if w != "$(NULL)"]


def sources():
    """The paths of all sources in C."""
    return sorted(glob.glob("core/*/*.c", root_dir=TOP) +
                  glob.glob("plugin/*.c", root_dir=TOP))


def tests_of_the_core():
    """C tests, those that run again over NBD, and shell tests of the plugin."""
    return listed("c_tests") + listed("nbd_tests") + [
        t for t in listed("shell_tests") if not t.startswith(ELSEWHERE)]


def is_wanted(name, wanted):
    return any(name == w or name.startswith(w.rstrip("/") + "/") for w in wanted)


def choose(names, wanted):
    """Those of NAMES that are WANTED: a test, or a folder of tests."""
    for w in wanted:
        if not any(is_wanted(n, [w]) for n in names):
            raise SystemExit("no such test: " + w)
    return [n for n in names if not wanted or is_wanted(n, wanted)]


def is_program(name):
    return not name.endswith(".sh")


def program_of(name):
    """The program that a C test runs."""
    return name[len("nbd/"):] if name.startswith("nbd/") else name


def short(path):
    """How includes name a source: space/alloc.c is core/space/alloc.c."""
    return path.removeprefix("core/")


def folder(path):
    return os.path.dirname(short(path))


def includes(name, path):
    """Does the C test include the source PATH (core/util/epoch.c)?"""
    with open(os.path.join(TOP, "tests", program_of(name) + ".c"), encoding="utf-8") as f:
        return '#include "%s"' % short(path) in f.read()


def make(build, *args):
    """make -s ARGS in BUILD; its output."""
    done = subprocess.run(["make", "-s", "-C", build, *args], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SystemExit(done.stdout + "make failed in " + build)
    return done.stdout


def make_variable(build, text):
    """What the makefile of BUILD makes of TEXT, for example "$(CC) $(CFLAGS)"."""
    return make(build, "--eval", "print-text: ; @echo '%s'" % text,
                "print-text").strip()


def run(name, build, where, program=None, plugin=None, env=None, timeout=TIMEOUT,
        before=()):
    """Runs a test in the new directory WHERE: with PROGRAM or PLUGIN, if they are not
    those of BUILD; BEFORE is put before its command.  Returns how it ended, after how
    many seconds, and the end of what it said."""
    tests = os.path.join(build, "tests")
    environment = dict(
        os.environ, srcdir=os.path.join(TOP, "tests"), abs_top_builddir=build,
        abs_top_srcdir=TOP,
        PLUGIN=plugin or os.path.join(build, "plugin/.libs/nbdkit-qcow2-plugin.so"),
        UBSAN_OPTIONS="halt_on_error=1", TSAN_OPTIONS="halt_on_error=1", **(env or {}))
    if name.startswith("nbd/"):
        environment["QCOW2_TEST_STORAGE"] = "nbd"
    if is_program(name):
        command = [*before, program or os.path.join(tests, program_of(name))]
    else:
        command = ["bash", os.path.join(TOP, "tests", name)]
    # (It does not outlive this process.)
    command = ["setpriv", "--pdeathsig", "TERM", *command]
    shutil.rmtree(where, ignore_errors=True)
    os.makedirs(where)
    log = where + ".log"
    start = time.monotonic()
    with open(log, "wb") as out:
        # A group of its own: a test that hangs is ended with all that it started.
        process = subprocess.Popen(command, cwd=where, env=environment, stdout=out,
                                   stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            status = process.wait(timeout)
            result = {0: PASSED, 77: SKIPPED}.get(status, FAILED)
        except subprocess.TimeoutExpired:
            result = HANGS
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    seconds = time.monotonic() - start
    with open(log, "rb") as said:
        said.seek(max(0, os.path.getsize(log) - 2000))
        tail = said.read().decode("utf-8", "replace")
    shutil.rmtree(where, ignore_errors=True)
    os.unlink(log)
    return result, seconds, tail
