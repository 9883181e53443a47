# SPDX-License-Identifier: BSD-3-Clause
"""What the Python parts of lab/ share: servers, and gnuplot."""

import os
import signal
import subprocess
import time

START_SECONDS = 120             # on a busy machine


class ServerFailure(Exception):
    """A server that does not start, or does not end as it has to."""


class Server:
    """nbdkit, listening on NAME.sock in this directory.  It ends with this thread."""

    def __init__(self, nbdkit, directory, name, *args):
        self.name = name
        self.socket, self.log, pidfile = (os.path.join(directory, name + suffix)
                                          for suffix in (".sock", ".log", ".pid"))
        for old in (self.socket, pidfile):
            if os.path.exists(old):
                os.unlink(old)
        with open(self.log, "ab") as log:
            log.write(("\n" + " ".join(args) + "\n").encode())
            log.flush()
            self.begin = log.tell()
            self.process = subprocess.Popen(
                [nbdkit, "-f", "--exit-with-parent", "-U", self.socket, "-P", pidfile,
                 *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not os.path.exists(pidfile) or os.path.getsize(pidfile) == 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailure("%s does not start: %s" % (name, self.said()))
            time.sleep(0.002)

    @property
    def pid(self):
        return self.process.pid

    def uri(self, export=""):
        return "nbd+unix:///%s?socket=%s" % (export, self.socket)

    def said(self):
        """Since this start."""
        with open(self.log, "rb") as f:
            f.seek(self.begin)
            return f.read().decode(errors="replace").strip()

    def signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """SIGTERM; it has to end with status 0."""
        self.signal(signal.SIGTERM)
        if self.process.wait() != 0:
            raise ServerFailure("%s: exit status %d: %s" % (
                self.name, self.process.returncode, self.said()))


def proc(pid, name):
    with open("/proc/%d/%s" % (pid, name), encoding="utf-8", errors="replace") as f:
        return f.read()


def proc_numbers(pid, name):
    """The fields of a file of /proc that are numbers."""
    return {k: int(v.split()[0]) for k, v in
            (line.split(":", 1) for line in proc(pid, name).splitlines())
            if v.split() and v.split()[0].isdigit()}


def gnuplot(script):
    done = subprocess.run(["gnuplot"], input=script, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise OSError("gnuplot: " + done.stderr.strip()[-300:])


def quote(text):
    """For gnuplot."""
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')
