# SPDX-License-Identifier: BSD-3-Clause
"""nbdkit processes that are watched, and end in several ways."""

import os
import signal
import time

import common
from common import proc_numbers
from model import Failure

END_SECONDS = 120               # on a busy machine
# nbdkit before 1.34 ends so when a client goes that has requests in flight.
ABORT = "Assertion `sock >= 0' failed"


class Server(common.Server):
    def stop(self, meanwhile=lambda: None, clean=True):
        """SIGTERM.  Returns False if nbdkit has aborted, which counts as a crash."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise Failure("%s does not end after SIGTERM" % self.name)
            meanwhile()
            time.sleep(0.002)
        status = self.process.returncode
        if status == -signal.SIGABRT and ABORT in self.said():
            return False
        if clean and status != 0:
            raise Failure("%s: exit status %d: %s" % (self.name, status, self.said()))
        return True


def usage(pid):
    """RSS in bytes, open descriptors and threads of a process; None if it has ended."""
    try:
        status = proc_numbers(pid, "status")
        return (status["VmRSS"] * 1024, len(os.listdir("/proc/%d/fd" % pid)),
                status["Threads"])
    except (OSError, KeyError):
        return None
