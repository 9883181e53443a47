# SPDX-License-Identifier: BSD-3-Clause
"""Raw files: their size and their holes."""

import errno
import os
import stat

from cli import About


def regular_size(name):
    """None for a device."""
    found = os.stat(name)
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def pieces(name):
    """(offset, length, is it a hole?) of all parts of a regular file."""
    found = []
    with About(name), open(name, "rb") as f:
        at, end = 0, f.seek(0, os.SEEK_END)
        while at < end:
            for whence, is_hole in ((os.SEEK_DATA, True), (os.SEEK_HOLE, False)):
                until = next_place(f, at, end, whence)
                if until > at:
                    found.append((at, until - at, is_hole))
                at = until
    return found


def next_place(f, at, end, whence):
    """Where data, or a hole, begins."""
    if at == end:
        return end
    try:
        return min(os.lseek(f.fileno(), at, whence), end)
    except OSError as e:
        if e.errno == errno.ENXIO:
            return end                  # there is none
        if e.errno == errno.EINVAL:     # the filesystem does not know
            return at if whence == os.SEEK_DATA else end
        raise
