# SPDX-License-Identifier: BSD-3-Clause
"""Raw files: their size and their space."""

import errno
import os
import stat

from cli import About, Failure

CHUNK = 1 << 20
EXTENT = 1 << 30                # that the host allocates at once
LIMIT = 1 << 63                 # bytes; what offsets of the host can express


def size(name):
    with About(name), open(name, "rb") as f:
        return f.seek(0, os.SEEK_END)


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


def refuse_uri(image):
    if image.uri:
        raise Failure("%s: the size of an NBD export cannot be changed" % image.given)


def set_size(f, name, old, new, preallocation, progress):
    """OLD bytes of the file become NEW bytes, with space for the rest as PREALLOCATION
    says; as they were if that fails."""
    if stat.S_ISBLK(os.fstat(f.fileno()).st_mode):
        if new > old:
            raise Failure("%s: the device has %d bytes, not %d" % (name, old, new))
        return
    if new >= LIMIT:
        raise Failure("%s: %s" % (name, os.strerror(errno.EFBIG)))
    if preallocation == "metadata":
        raise Failure("preallocation=metadata: raw images have no metadata")
    try:
        if preallocation == "falloc" and new > old:
            pieces = range(old, new, EXTENT)
            for n, at in enumerate(pieces, 1):
                os.posix_fallocate(f.fileno(), at, min(EXTENT, new - at))
                progress.count(n, len(pieces))
        elif preallocation == "full":
            f.seek(old)
            pieces = range(old, new, CHUNK)
            for n, at in enumerate(pieces, 1):
                f.write(bytes(min(CHUNK, new - at)))
                progress.count(n, len(pieces))
            f.flush()
        f.truncate(new)
        os.fsync(f.fileno())
    except OSError as e:
        f.truncate(old)
        raise Failure("%s: %s" % (name, e.strerror)) from None


def allocate(image):
    """Gives the holes of a file space; they stay zeros."""
    if not image.uri:
        with open(image.path, "r+b") as f:
            if stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                try:
                    os.posix_fallocate(f.fileno(), 0, f.seek(0, os.SEEK_END))
                except OSError as e:
                    raise Failure("%s: %s" % (image.given, e.strerror)) from None
