# SPDX-License-Identifier: BSD-3-Clause
"""Where in a file are the bytes of a disk, as they are?  A program that only reads can
take them from there, which saves the two copies that NBD makes."""

import array
import fcntl
import os
import struct
from bisect import bisect_right

import jsontext
import programs

MAX_MAP = 64 << 20              # bytes of JSON; more would take longer than it saves


class Raw:
    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_into(self, buffer, at):
        """False: some of it must be read in another way."""
        return os.preadv(self.fd, [buffer], at) == len(buffer)


class Places:
    """Those in a qcow2 file: not of what is compressed, encrypted, or in another file.
    Its server gets the PARAMETERS and the descriptors FDS; when it serves, read is
    called."""

    def __init__(self, image):
        self.begins, self.ends, self.hosts = [], [], []
        self.parameters, self.fds = (), ()
        # If another program may write, what the map says may be over.
        if image.uri or image.share:
            return
        self.fd = os.open(image.path, os.O_RDONLY | os.O_CLOEXEC)
        if is_plain(os.pread(self.fd, 80, 0)):
            report = programs.text_file()
            # Above those that a server uses itself.
            self.fds = (fcntl.fcntl(report, fcntl.F_DUPFD_CLOEXEC, 20),)
            os.close(report)
            self.parameters = ("map=/dev/fd/%d" % self.fds,)

    def read(self):
        if not self.fds or os.fstat(self.fds[0]).st_size > MAX_MAP:
            return
        self.begins, self.ends, self.hosts = (array.array("Q") for _ in range(3))
        with open(self.fds[0], encoding="ascii") as f:
            f.seek(0)
            for run in jsontext.lines(f):
                if run["data"] and not run["depth"] and "offset" in run:
                    self.begins.append(run["start"])
                    self.ends.append(run["start"] + run["length"])
                    self.hosts.append(run["offset"])

    def read_into(self, buffer, at):
        """False: some of it must be read in another way."""
        i = bisect_right(self.begins, at) - 1
        done = 0
        view = memoryview(buffer)
        while done < len(buffer):
            if i < 0 or i == len(self.begins) or \
                    not self.begins[i] <= at + done < self.ends[i]:
                return False
            n = min(len(buffer) - done, self.ends[i] - at - done)
            host = self.hosts[i] + at + done - self.begins[i]
            if os.preadv(self.fd, [view[done:done + n]], host) != n:
                return False
            done += n
            i += 1
        return True


def is_plain(head):
    """Neither encrypted nor with an external data file."""
    version, crypt, incompatible = struct.unpack(">4xI24xI36xQ", head.ljust(80, b"\0"))
    return crypt == 0 and (version == 2 or not incompatible & 4)
