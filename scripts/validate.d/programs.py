# SPDX-License-Identifier: BSD-3-Clause
"""Starts programs for one image, and makes text of what they say."""

import os
import re
import subprocess
import time

MAX_MESSAGE = 4000              # of what a program said


class Trouble(Exception):
    """A step that could not be done: no statement about the image."""


def printable(text):
    """Without what could forge lines, or is not text."""
    return "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff"
                   else "\\x%02x" % (ord(c) & 0xff if "\udc80" <= c <= "\udcff"
                                     else ord(c)) for c in text)


def ended_by_itself(program, status):
    if status < 0:              # as when there is no memory left
        raise Trouble("%s was killed by signal %d" % (program, -status))


def lines_of(text):
    return [printable(x) for x in text.split("\n") if x.strip()]


class Runner:
    """Starts programs for one image, and ends them."""

    def __init__(self, image, options, tmp, sock):
        self.name, self.path = image, os.path.abspath(image)
        self.fd = None          # of the image, if the plugin must not open the name again
        self.options = options
        self.tmp = tmp          # a directory
        self.sock = sock        # where the server listens
        self.server = None
        self.log = None
        self.last = ()          # what serve was called with

    def open(self):
        """From now on all programs use this file, whatever its name means later."""
        # A pipe without a writer must not make us wait.
        self.fd = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK |
                          os.O_NOCTTY)
        return self.fd

    @property
    def file(self):
        """The name of the image for programs that inherit `fds'."""
        return self.path if self.fd is None else "/dev/fd/%d" % self.fd

    @property
    def fds(self):
        return () if self.fd is None else (self.fd,)

    def named(self, text):
        """TEXT, of such a program, with the name that the user gave."""
        return text if self.fd is None else re.sub(
            re.escape(self.file) + r"\b", lambda _: self.path, text)

    def command(self, args, stdout=None):
        """Runs a program; (status, what it said)."""
        log = os.path.join(self.tmp, "log")
        try:
            with open(log, "wb") as err:
                p = subprocess.run(args, stdin=subprocess.DEVNULL,
                                   stdout=stdout or err, stderr=err,
                                   timeout=self.options.timeout)
        except FileNotFoundError:
            raise Trouble("%s is not installed" % args[0])
        except subprocess.TimeoutExpired:
            raise Trouble("%s took longer than %g seconds"
                          % (args[0], self.options.timeout))
        ended_by_itself(args[0], p.returncode)
        return p.returncode, read_text(log)

    def serve(self, before=(), parameters=()):
        """Starts nbdkit, read-only.  Its URI; or None if it refuses: see log."""
        self.stop()
        self.last = before, parameters
        pidfile = os.path.join(self.tmp, "pid")
        self.log = os.path.join(self.tmp, "server.log")
        for name in (self.sock, pidfile, self.log):
            if os.path.exists(name):
                os.unlink(name)
        args = [self.options.nbdkit, "-r", "-f", "--exit-with-parent", "-U", self.sock,
                "-P", pidfile, *before, self.options.plugin,
                "file=" + self.file, *self.options.param, *parameters]
        if self.options.policy:
            args.append("untrusted=true")
        if self.options.passphrase_file:
            args.append("passphrase=+" +
                        os.path.abspath(self.options.passphrase_file))
        try:
            with open(self.log, "wb") as log:
                self.server = subprocess.Popen(args, stdin=subprocess.DEVNULL,
                                               stdout=log, stderr=log, pass_fds=self.fds)
        except FileNotFoundError:
            raise Trouble("%s is not installed" % args[0])
        deadline = self.options.timeout and time.monotonic() + self.options.timeout
        # Whole: nbdkit writes its number and a newline when it listens.
        while not (os.path.exists(pidfile) and read_text(pidfile).endswith("\n")):
            if self.server.poll() is not None:
                self.server = None
                return None
            if deadline and time.monotonic() > deadline:
                self.stop()
                raise Trouble("nbdkit took longer than %g seconds to start"
                              % self.options.timeout)
            time.sleep(0.01)
        return "nbd+unix:///?socket=" + self.sock

    def said(self):
        return self.named(read_text(self.log))

    def close(self):
        self.stop()
        if self.fd is not None:
            os.close(self.fd)

    def stop(self):
        if self.server is not None:
            self.server.terminate()
            try:
                self.server.wait(10)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
            self.server = None


def read_text(name):
    """The end of a file, which may hold anything."""
    with open(name, "rb") as f:
        f.seek(0, os.SEEK_END)
        f.seek(max(0, f.tell() - MAX_MESSAGE))
        return f.read().decode("utf-8", "surrogateescape")
