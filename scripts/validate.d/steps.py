# SPDX-License-Identifier: BSD-3-Clause
"""What is done with one image."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

import gate
from filesystems import Partitions, filesystem, partitions
from programs import Runner, Trouble, ended_by_itself, read_text

OK, FAILED, ERROR, SKIPPED = "ok", "failed", "error", "skipped"
PREFIX = "nbdkit-qcow2-validate."
# A disk is read if it has so much data, and so many times the bytes of the files: deflate
# compresses to 1/1032 at best.
SPARE_BYTES, SPARE_TIMES = 64 << 30, 1032
SHORT = 100                     # bytes; names of sockets have at most 107
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


class Image:
    def __init__(self, name, options):
        self.name = name
        self.options = options
        self.steps = []         # (name, status, message, seconds)
        self.report = None
        self.findings = None    # of the policy: list of (code, text)
        self.sha256 = None

    def status(self):
        have = [s[1] for s in self.steps]
        return FAILED if FAILED in have else ERROR if ERROR in have else OK

    def step(self, name, function, *args):
        """True if it went well, or could not be done for a reason that is no fault."""
        start = time.monotonic()
        try:
            status, message = function(*args)
        except Trouble as e:
            status, message = ERROR, str(e)
        except OSError as e:
            status, message = ERROR, "%s: %s" % (e.filename or name, e.strerror)
        self.steps.append((name, status, message, time.monotonic() - start))
        return status in (OK, SKIPPED)

    def validate(self):
        with contextlib.ExitStack() as stack:
            tmp = sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
            if len(os.fsencode(tmp)) > SHORT:
                sockets = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix=PREFIX, dir="/tmp"))
            runner = Runner(self.name, self.options, tmp, os.path.join(sockets, "sock"))
            stack.callback(runner.close)
            self.validate_with(runner)

    def validate_with(self, runner):
        o = self.options
        if o.policy and (not self.step("policy", self.judge, runner) or o.policy_only):
            return
        if not self.step("check", self.check, runner):
            return
        uri = "nbd+unix:///?socket=" + runner.sock
        expected = o.sums and o.sums.get(self.name) or \
            o.sums and o.sums.get(os.path.basename(self.name)) or o.sha256
        wanted = o.hash or o.sha256 or o.sums is not None
        if not o.no_read and not self.step("read", self.read, runner, uri, wanted):
            return
        if o.sha256 or o.sums is not None:
            self.step("sha256", self.compare, runner, uri, expected)
        if o.fsck:
            self.filesystems(runner)

    def judge(self, runner):
        self.findings = gate.judge(self.name, self.options.policy, runner)
        return (FAILED if self.findings else OK), "\n".join(
            "%s: %s" % f for f in self.findings)

    def check(self, runner):
        report = os.path.join(runner.tmp, "report.json")
        uri = runner.serve((), ("check=" + self.options.check, "check-report=" + report))
        if os.path.exists(report):
            with open(report, encoding="utf-8", errors="surrogateescape") as f:
                self.report = json.load(f)
            for file in (self.report, *self.report["layers"]):
                file["filename"] = runner.named(file["filename"])
        said = runner.said()
        if self.report is not None and (self.report["verdict"] == "corrupt" or (
                self.options.policy and self.has_error("too-much-work"))):
            return FAILED, said
        if uri is None:
            return ERROR, said
        if self.report is None:
            return ERROR, "the plugin wrote no report"
        if self.report["leaks"] and self.options.no_leaks:
            return FAILED, said
        return OK, said

    def has_error(self, kind):
        return any(e["kind"] == kind for layer in self.report["layers"]
                   for e in layer["errors"])

    def too_much(self, runner):
        """Why the disk is not read, or None.  A few MiB can contain terabytes of data: the
        same bytes again and again."""
        layers = self.report["layers"]
        most = SPARE_BYTES + SPARE_TIMES * (
            min(layers[0]["file-size"], os.stat(runner.file).st_blocks * 512)
            + sum(layer["file-size"] for layer in layers[1:]))
        data = sum(layer.get("allocated-clusters", 0) * layer.get("cluster-size", 0)
                   for layer in layers)
        return None if data <= most or self.options.timeout else \
            "the disk has %d bytes of data, more than files of this size should have " \
            "(%d): to read it, use --timeout" % (data, most)

    def hash_disk(self, runner, uri):
        """Reads all of the disk, once, and hashes it."""
        if self.sha256 is not None:
            return OK, ""
        log = os.path.join(runner.tmp, "log")
        digest = hashlib.sha256()
        size = 0
        try:
            with open(log, "wb") as err:
                p = subprocess.Popen(["nbdcopy", uri, "-"], stderr=err,
                                     stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE)
        except FileNotFoundError:
            raise Trouble("nbdcopy is not installed")
        late = threading.Event()

        def expire():
            late.set()
            p.kill()

        watch = threading.Timer(self.options.timeout or threading.TIMEOUT_MAX, expire)
        watch.daemon = True
        if self.options.timeout:
            watch.start()
        with p:
            while True:
                data = p.stdout.read(1 << 20)
                if not data:
                    break
                digest.update(data)
                size += len(data)
        watch.cancel()
        if late.is_set():
            raise Trouble("nbdcopy took longer than %g seconds" % self.options.timeout)
        ended_by_itself("nbdcopy", p.returncode)
        if p.returncode != 0:
            return FAILED, read_text(log) + runner.said()
        if size != self.report["layers"][0]["virtual-size"]:
            return FAILED, "read %d bytes, expected %d" % (
                size, self.report["layers"][0]["virtual-size"])
        self.sha256 = digest.hexdigest()
        return OK, ""

    def read(self, runner, uri, wanted):
        why = self.too_much(runner)
        if why:
            raise Trouble(why)
        if wanted:
            return self.hash_disk(runner, uri)
        status, said = runner.command(["nbdcopy", uri, "null:"])
        return (OK, "") if status == 0 else (FAILED, said + runner.said())

    def compare(self, runner, uri, expected):
        if not expected:
            return FAILED, "no checksum was given for this image"
        status, said = self.hash_disk(runner, uri)
        if status != OK:
            return status, said
        if self.sha256 != expected:
            return FAILED, "the checksum of the disk is %s, not %s" % (self.sha256,
                                                                       expected)
        return OK, ""

    # --- filesystems

    def filesystems(self, runner):
        head = os.path.join(runner.tmp, "head")
        found = Partitions()

        def look():
            if runner.serve(("--filter=truncate",), ("truncate=65536",)) is None:
                raise Trouble(runner.said())
            status, said = self.copy(runner, head)
            if status != OK:
                return status, said
            with open(head, "rb") as f:
                there = partitions(f.read())
            found.extend(there)
            found.mbr_extended = there.mbr_extended
            return OK, ""

        if not self.step("partitions", look):
            return
        if not found and not found.mbr_extended:
            self.step("filesystem", self.fsck, runner, None)
        for n in found:
            self.step("filesystem of partition %d" % n, self.fsck, runner, n)
        # Logical partitions are found by their numbers.
        n = 5
        while found.mbr_extended and n < 64:
            before = len(self.steps)
            self.step("filesystem of partition %d" % n, self.fsck, runner, n)
            if self.steps[before][1] == ERROR and runner.server is None:
                del self.steps[before]
                break
            n += 1

    def copy(self, runner, target):
        uri = "nbd+unix:///?socket=" + runner.sock
        status, said = runner.command(["nbdcopy", uri, target])
        if status == 0:
            return OK, ""
        # Which of both could not be used?  (A full TMPDIR has no room for messages.  Some
        # nbdkits don't survive clients that go away in the middle, hence a new one.)
        server_said = runner.said()
        if os.path.exists(target):
            os.unlink(target)
        if runner.serve(*runner.last) is None:
            raise Trouble(runner.said())
        if runner.command(["nbdcopy", uri, "null:"])[0] == 0:
            raise Trouble("the disk can be read but not copied to %s: "
                          "is there enough space?\n%s" % (runner.tmp, said))
        return FAILED, said + server_said

    def fsck(self, runner, number):
        volume = os.path.join(runner.tmp, "volume")
        if os.path.exists(volume):
            os.unlink(volume)
        if number is None:
            uri = runner.serve()
        else:
            uri = runner.serve(("--filter=partition",), ("partition=%d" % number,))
        if uri is None:
            raise Trouble(runner.said())
        status, said = self.copy(runner, volume)
        if status != OK:
            return status, said
        kind, command = filesystem(volume)
        if kind is None:
            return SKIPPED, "unknown filesystem"
        program = shutil.which(command[0], path=os.environ.get("PATH", os.defpath) +
                               ":" + SYSTEM_PATH)
        if program is None:
            return SKIPPED, "%s, but %s is not installed" % (kind, command[0])
        status, said = runner.command([program, *command[1:], volume])
        os.unlink(volume)
        return (OK, kind) if status == 0 else (FAILED, said)
