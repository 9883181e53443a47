# SPDX-License-Identifier: BSD-3-Clause
"""Images that are served, and their NBD clients: libnbd's Python module, and nbdcopy."""

import os

import images
import programs
from cli import Failure

CONTEXT = "base:allocation"
HOLE, ZERO = 1, 2               # flags of it
STATUS = 1 << 30                # bytes asked about at a time


def libnbd():
    import sys
    if "nbd" not in sys.modules:
        import site
        site.main()             # where modules of the distribution are
    try:
        import nbd
    except ImportError:
        raise Failure("libnbd's Python module is missing (package python3-libnbd)") \
            from None
    return nbd


class Served:
    """An image that clients can use.

    PARAMETERS are more of them for the plugin, and FDS descriptors for it.  FILTERS are
    words for nbdkit's command line.  WINDOW is (offset, length) of the part that clients
    see.  Raw exports of NBD servers need no server of ours, unless there are filters."""

    def __init__(self, image, writing=False, parameters=(), export="", window=None,
                 fds=(), filters=()):
        self.image = image
        self.server = None
        more = [word for word in filters if not word.startswith("--")]
        filters = [word for word in filters if word.startswith("--")]
        if window is not None:
            filters.append("--filter=offset")
            more += ["offset=%d" % window[0], "range=%d" % window[1]]
        if image.format == "qcow2":
            passphrases = images.Passphrases(image.secrets)
            arguments = [*filters, programs.plugin, *image.parameters(writing),
                         *passphrases.parameters, *parameters, *more]
            self.server = programs.Server(arguments, [*passphrases.fds, *fds], not writing)
            passphrases.close()
        elif not image.uri:
            hold(image, writing)
            self.server = programs.Server([*filters, "file", image.path, *more], (),
                                          not writing)
        elif filters:
            self.server = programs.Server([*filters, "nbd", "uri=" + image.path, *more],
                                          (), not writing)
        self.uri = self.server.uri(export) if self.server else image.path

    def connect(self):
        nbd = libnbd()
        handle = nbd.NBD()
        handle.add_meta_context(CONTEXT)
        try:
            connect(handle, self.uri)
        except nbd.Error as e:
            raise Failure(self.explain(why(self.image.given, e))) from None
        return handle

    def size(self):
        handle = self.connect()
        size = handle.get_size()
        handle.shutdown()
        return size

    def explain(self, why):
        return self.server.explain(why) if self.server else why

    def stop(self):
        if self.server:
            self.server.stop()


def hold(image, writing):
    """Locks a raw file, as QEMU would, until the end of this process."""
    if not image.uri and not image.share:
        import locks
        locks.hold(image.path, image.given, writing)


def why(given, error):
    """What libnbd says may name the user or the key of a URI."""
    return "%s: %s" % (given, "cannot connect (the reason may contain secrets of the URI)"
                       if "..." in given else error.string)


def first_bytes(image, count):
    nbd = libnbd()
    handle = nbd.NBD()
    try:
        connect(handle, image.path)
        count = min(count, handle.get_size())
        data = read(handle, 0, count) if count else b""
        handle.shutdown()
    except nbd.Error as e:
        raise Failure(why(image.given, e)) from None
    return bytes(data)


# Not libnbd's synchronous functions: Python would not notice signals while a server does
# not answer.
TICK = 200                      # milliseconds

def connect(handle, uri):
    handle.aio_connect_uri(uri)
    programs.connections.append(handle.aio_get_fd())
    while handle.aio_is_connecting():
        handle.poll(TICK)
    # The reason, if it failed.
    handle.get_size()


def wait(handle, cookie):
    while not handle.aio_command_completed(cookie):
        handle.poll(TICK)


def read(handle, at, length):
    data = libnbd().Buffer(length)
    wait(handle, handle.aio_pread(data, at))
    return data.to_bytearray()


def zero(handle, at, length):
    while length:
        n = min(length, STATUS)
        wait(handle, handle.aio_zero(n, at))
        at, length = at + n, length - n


def extents(handle, begin, end):
    """Yields (offset, length, flags): what is in these bytes of the disk."""
    at = begin
    while at < end:
        if not handle.can_meta_context(CONTEXT):
            yield at, end - at, 0
            return
        found = []

        def collect(context, _offset, entries, _error):
            if context == CONTEXT:
                found.extend(zip(entries[::2], entries[1::2]))

        wait(handle, handle.aio_block_status(min(STATUS, end - at), at, collect))
        if not found:
            raise Failure("the server did not answer about offset %d" % at)
        for length, flags in found:
            length = min(length, end - at)
            if length:
                yield at, length, flags
            at += length
