# SPDX-License-Identifier: BSD-3-Clause
"""QEMU's locks on what the plugin does not lock: raw files, and files that are replaced.

The locks are on single bytes (open file description locks): 100 + i if a program uses a
file in way i, 200 + i if it does not want others to.  Of these ways, 0 is reading what
does not change meanwhile, 1 writing, and 3 changing the size.
"""

import errno
import fcntl
import os
import struct

from cli import Failure
from programs import BOTH

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


READING, WRITING, REPLACING = range(3)
_held = {}                      # (device, inode): (which of these three, descriptor)


def _key(found):
    return found.st_dev, found.st_ino


def hold(path, name, way):
    """Locks a file until this process ends; for reading others may read it too.  Its
    descriptor."""
    fd = os.open(path, os.O_RDWR if way else os.O_RDONLY)
    key = _key(os.fstat(fd))
    have, old = _held.get(key, (READING, None))
    if old is not None and REPLACING in (have, way):
        raise Failure(BOTH % name)
    if old is not None and have >= way:
        os.close(fd)
        return old
    if old is not None:
        os.close(old)
    _held[key] = way, fd
    uses = (READ, WRITE, RESIZE) if way else (READ,)
    refuses = (WRITE, RESIZE)
    try:
        for byte in [USES + i for i in uses] + [REFUSES + i for i in refuses]:
            fcntl.fcntl(fd, F_OFD_SETLK, _flock(fcntl.F_RDLCK, byte))
    except OSError as e:
        if e.errno in (errno.EACCES, errno.EAGAIN):
            _refuse(name)
        return fd                       # a filesystem without locks
    for byte in [REFUSES + i for i in uses] + [USES + i for i in refuses]:
        # My own locks do not count.
        if _locked(fd, byte):
            _refuse(name)
    return fd


def refuse_open(pid):
    """A server that takes no locks must not have opened what is written or replaced."""
    directory = "/proc/%d/fd/" % pid
    for n in os.listdir(directory):
        if _held.get(_key(os.stat(directory + n)), (READING,))[0] != READING:
            raise Failure(BOTH % os.readlink(directory + n))
