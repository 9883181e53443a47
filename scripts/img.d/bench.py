# SPDX-License-Identifier: BSD-3-Clause
"""bench: how long requests take, over NBD."""

import cli
import clients
import images
from cli import Command, Failure, Option


def bench(o):
    count = number(o.count, "-c", 75000)
    depth = number(o.depth, "-d", 64)
    size = images.size_of(o.buffer_size or "4096", "-s")
    step = images.size_of(o.step_size, "-S") if o.step_size else size
    offset = images.size_of(o.offset or "0", "-o")
    flush = number(o.flush_interval, "--flush-interval", 0, 0)
    pattern = number(o.pattern, "--pattern", 0, 0)
    if pattern > 255:
        raise Failure("--pattern: a byte has at most 255")
    if size == 0 or size > 32 << 20:
        raise Failure("-s: from 1 byte to 32M")
    if flush and not o.write:
        raise Failure("--flush-interval requires -w")
    if o.native or o.aio:
        raise Failure("-n and -i are not supported: requests go over NBD")
    image = images.image_of(o, o.operands[0], o.format)
    parameters = ["cache=none"] if o.cache == "none" and image.format == "qcow2" else []
    served = clients.Served(image, o.write, parameters)
    handle = served.connect()
    disk = handle.get_size()
    if size > disk:
        raise Failure("%s: the disk has %d bytes, fewer than a request"
                      % (image.given, disk))
    if not o.quiet:
        print("Sending %d %s requests, %d bytes each, %d in parallel (starting at offset "
              "%d, step size %d)" % (count, "write" if o.write else "read", size, depth,
                                     offset, step))
        if flush:
            print("Sending flush every %d requests" % flush)
    places = around(offset, step, disk - size + 1)
    seconds = send(handle, o.write, count, depth, size, places, flush, pattern)
    handle.shutdown()
    served.stop()
    if not o.quiet:
        print("Run completed in %3.3f seconds." % seconds)
    return 0


def number(text, what, default, least=1):
    return default if text is None else images.number_of(text, what, least)


def around(offset, step, end):
    """Offsets less than END."""
    while True:
        yield offset % end
        offset += step


def send(handle, writing, count, depth, size, places, flush, pattern):
    """The seconds that this takes."""
    import time
    nbd = clients.libnbd()
    buffers = [nbd.Buffer.from_bytearray(bytearray([pattern]) * size)
               for _ in range(depth)]
    free = list(range(depth))
    begin = time.monotonic()
    sent = 0

    def done(slot):
        def completed(error):
            if error.value:
                raise_later.append(error.value)
            free.append(slot)
            return 1
        return completed

    raise_later = []
    try:
        while sent < count or len(free) < depth:
            while free and sent < count and not raise_later:
                slot = free.pop()
                command = handle.aio_pwrite if writing else handle.aio_pread
                command(buffers[slot], next(places), done(slot))
                sent += 1
                if flush and sent % flush == 0:
                    wait_for_all(handle, free, depth)
                    handle.flush()
            if raise_later:
                import os
                raise Failure("a request failed: " + os.strerror(raise_later[0]))
            if len(free) < depth:
                handle.poll(clients.TICK)
    except nbd.Error as e:
        raise Failure(e.string) from None
    return time.monotonic() - begin


def wait_for_all(handle, free, depth):
    while len(free) < depth:
        handle.poll(clients.TICK)


COMMANDS = {"bench": Command(
    "bench", "IMAGE",
    "Measure how long requests take.  They go through nbdkit, so this is what an NBD "
    "client gets.",
    [cli.FORMAT,
     Option("c", "count", "the number of requests (default 75000)", "N"),
     Option("d", "depth", "how many are in flight (default 64)", "N"),
     Option("o", "offset", "where the first one is (default 0)", "OFFSET"),
     Option("s", "buffer-size", "their size (default 4096)", "SIZE"),
     Option("S", "step-size", "how far the next one is from the last (default SIZE)",
            "SIZE"),
     Option("w", "write", "write; this destroys the data of the disk"),
     Option(None, "pattern", "the byte that is written (default 0)", "N"),
     Option(None, "flush-interval", "flush after so many requests", "N"),
     Option(None, "no-drain", "accepted, without effect"),
     Option("n", "native", "refused"), Option("i", "aio", "refused", "AIO"),
     cli.CACHE, cli.QUIET, cli.SHARE, *cli.IMAGE],
    bench)}
