# SPDX-License-Identifier: BSD-3-Clause
"""compare: reads what is not known to be zeros from both disks, several pieces at a time."""

import cli
import clients
import images
from cli import Command, Failure, Option

# Exit statuses.
SAME, DIFFERENT, NOT_OPENED, NOT_MAPPED, NOT_READ = 0, 1, 2, 3, 4

PIECE = 1 << 20
DEPTH = 8                       # pieces in flight


class Disk:
    def __init__(self, image):
        self.image = image
        self.served = clients.Served(image)
        self.handle = self.served.connect()
        self.size = self.handle.get_size()

    def extents(self, begin, end):
        try:
            yield from clients.extents(self.handle, begin, end)
        except clients.libnbd().Error as e:
            raise Failure("%s: %s" % (self.image.given, e.string), NOT_MAPPED) from None


def compare(o):
    try:
        one, two = (Disk(images.image_of(o, name, format)) for name, format in
                    zip(o.operands, (o.format, o.format_2)))
    except (Failure, OSError) as e:
        text = str(e) if isinstance(e, Failure) else "%s: %s" % (e.filename, e.strerror)
        raise Failure(text, NOT_OPENED) from None
    if one.size != two.size:
        if o.strict:
            say(o, "Strict mode: Image size mismatch!")
            return DIFFERENT
    progress = clients.Progress(o.progress and not o.quiet)
    end = min(one.size, two.size)
    found = compare_common(o, one, two, end, progress)
    if found is None and one.size != two.size:
        say(o, "Warning: Image size mismatch!")
        larger = max(one, two, key=lambda d: d.size)
        at = first_difference(larger, None, larger.extents(end, larger.size), progress)
        found = at is not None and "Content mismatch at offset %d!" % at
    progress.end()
    if found:
        say(o, found)
        return DIFFERENT
    say(o, "Images are identical.")
    return SAME


def say(o, text):
    if not o.quiet:
        print(text)


def compare_common(o, one, two, end, progress):
    """What is different, or None.  Strict mode ends at the first difference of either
    kind."""
    pieces = both(one, two, end)
    if o.strict:
        pieces = list(pieces)
        for n, (at, _, a, b) in enumerate(pieces):
            if a != b:
                before = first_difference(one, two, data_of(pieces[:n]), progress)
                if before is not None:
                    return "Content mismatch at offset %d!" % before
                return "Strict mode: Offset %d block status mismatch!" % at
    at = first_difference(one, two, data_of(pieces), progress)
    return None if at is None else "Content mismatch at offset %d!" % at


def both(one, two, end):
    """Yields (offset, length, flags of one, flags of two)."""
    a, b = one.extents(0, end), two.extents(0, end)
    x, y = next(a, None), next(b, None)
    at = 0
    while x is not None and y is not None:
        until = min(x[0] + x[1], y[0] + y[1])
        yield at, until - at, x[2], y[2]
        at = until
        if x[0] + x[1] == until:
            x = next(a, None)
        if y[0] + y[1] == until:
            y = next(b, None)


def data_of(pieces):
    """Those that are not zeros on both sides."""
    for at, length, a, b in pieces:
        if not a & b & clients.ZERO:
            yield at, length, 0


def first_difference(one, two, pieces, progress):
    """The first sector of PIECES that is different (if TWO is None, not zeros), or None."""
    nbd = clients.libnbd()
    flying = []
    disks = [d for d in (one, two) if d]
    try:
        for at, length in cut(pieces):
            flying.append((at, length, [start(nbd, d, at, length) for d in disks]))
            if len(flying) > DEPTH:
                found = judge(flying.pop(0), disks, progress)
                if found is not None:
                    return found
        for piece in flying:
            found = judge(piece, disks, progress)
            if found is not None:
                return found
    except nbd.Error as e:
        raise Failure(e.string, NOT_READ) from None
    return None


def cut(pieces):
    for at, length, flags in pieces:
        if flags & clients.ZERO:
            continue
        for begin in range(at, at + length, PIECE):
            yield begin, min(PIECE, at + length - begin)


def start(nbd, disk, at, length):
    buffer = nbd.Buffer(length)
    return buffer, disk.handle.aio_pread(buffer, at)


def judge(piece, disks, progress):
    at, length, reads = piece
    data = []
    for disk, (buffer, cookie) in zip(disks, reads):
        clients.wait(disk.handle, cookie)
        data.append(buffer.to_bytearray())
    progress.show(at / max(d.size for d in disks))
    a, b = data if len(data) == 2 else (data[0], bytearray(length))
    if a == b:
        return None
    for begin in range(0, length, images.SECTOR):
        if a[begin:begin + images.SECTOR] != b[begin:begin + images.SECTOR]:
            return at + begin
    return None


COMMANDS = {"compare": Command(
    "compare", "IMAGE IMAGE",
    "Compare the disks of two images.  Exit status: 0 they are identical, 1 they are "
    "different, 2 an image cannot be opened, 3 or more it cannot be read.",
    [Option("f", "format", "the format of the first image; without it, it is probed",
            "FORMAT"),
     Option("F", "format-2", "the same for the second image", "FORMAT"),
     Option("s", "strict", "sizes, and where the disks have holes, matter too"),
     cli.PROGRESS, cli.QUIET, cli.SHARE, cli.SOURCE_CACHE, *cli.IMAGE],
    compare, 2, 2)}
