# SPDX-License-Identifier: BSD-3-Clause
"""QEMU's locks on raw files, which nbdkit's other plugins do not take.

The locks are on single bytes (open file description locks): 100 + i if a program uses a
file in way i, 200 + i if it does not want others to.  Of these ways, 0 is reading what
does not change meanwhile, 1 writing, and 3 changing the size.
"""

import errno
import fcntl
import os
import struct

from cli import Failure

USES, REFUSES = 100, 200
READ, WRITE, RESIZE = 0, 1, 3

_FLOCK = "hhqqi4x"
F_OFD_GETLK, F_OFD_SETLK = 36, 37


def _flock(kind, start, length=1):
    return struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)


def _locked(fd, byte):
    """Does another program hold a lock on this byte?"""
    answer = fcntl.fcntl(fd, F_OFD_GETLK, _flock(fcntl.F_WRLCK, byte))
    return struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK


def _refuse(name):
    raise Failure("%s: is another process using it?  (It has locks of QEMU.)" % name)


def refuse_if_used(path, name):
    """For a file that is about to be replaced."""
    with open(path, "rb") as f:
        for i in (READ, WRITE, RESIZE):
            if _locked(f.fileno(), USES + i) or _locked(f.fileno(), REFUSES + i):
                _refuse(name)


_held = {}                      # path: (is it locked for writing, descriptor)


def hold(path, name, writing):
    """Locks a raw file until this process ends; for reading others may read it too."""
    path = os.path.realpath(path)
    if path in _held:
        have, fd = _held[path]
        if have >= writing:
            return
        os.close(fd)
    fd = os.open(path, os.O_RDWR if writing else os.O_RDONLY)
    _held[path] = writing, fd
    uses = (READ, WRITE, RESIZE) if writing else (READ,)
    refuses = (WRITE, RESIZE)
    try:
        for byte in [USES + i for i in uses] + [REFUSES + i for i in refuses]:
            fcntl.fcntl(fd, F_OFD_SETLK, _flock(fcntl.F_RDLCK, byte))
    except OSError as e:
        if e.errno in (errno.EACCES, errno.EAGAIN):
            _refuse(name)
        return                          # a filesystem without locks
    for byte in [REFUSES + i for i in uses] + [USES + i for i in refuses]:
        # My own locks do not count.
        if _locked(fd, byte):
            _refuse(name)
