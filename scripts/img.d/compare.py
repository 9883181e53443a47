# SPDX-License-Identifier: BSD-3-Clause
"""compare: the plugin compares files, one of which is qcow2 (compare=).  Of exports, of
raw files, and in strict mode, what is not known to be zeros is read here, several pieces
at once."""

import os
import stat
import sys

import cli
import clients
import images
import jsontext
import places
import programs
import rawfile
from cli import About, Command, Failure, Option
from progress import Progress

# Exit statuses.
SAME, DIFFERENT, NOT_OPENED, NOT_MAPPED, NOT_READ = 0, 1, 2, 3, 4

PIECE = 256 << 10               # bytes
DEPTH = 8                       # pieces in flight


class Disk:
    """Where the file has the bytes of the disk as they are, they are read from there: of
    raw files, and of qcow2 images as far as the server's map tells (places.py).  The
    server holds the lock that keeps others from changing the file."""

    def __init__(self, image):
        self.image = image
        if image.format == "qcow2":
            self.places = places.Places(image)
            self.served = clients.Served(image, parameters=self.places.parameters,
                                         fds=self.places.fds)
        else:
            self.places = None if image.uri else places.Raw(image.path)
            self.served = None if is_file(image) else clients.Served(image)
            if self.served is None:
                clients.hold(image, False)

    def connect(self):
        """Apart from the beginning, so that two servers start at the same time."""
        if self.served is None:
            self.size = rawfile.size(self.image.path)
            return
        self.handle = self.served.connect()
        if self.image.format == "qcow2":
            self.places.read()
        self.size = self.handle.get_size()

    def begin(self, buffer, at):
        """Begins to read: what await_data needs."""
        with About(self.image.given):
            if self.places is not None and self.places.read_into(buffer, at):
                return None
        if self.served is None:
            raise Failure("%s: the file has become shorter" % self.image.given, NOT_READ)
        try:
            return self.handle.aio_pread(clients.libnbd().Buffer.from_buffer(buffer), at)
        except clients.libnbd().Error as e:
            raise self.not_read(e) from None

    def await_data(self, cookie):
        if cookie is not None:
            try:
                clients.wait(self.handle, cookie)
            except clients.libnbd().Error as e:
                raise self.not_read(e) from None

    def not_read(self, error):
        return Failure(self.served.explain("%s: %s" % (self.image.given, error.string)),
                       NOT_READ)

    def drain(self):
        """Waits for what is in flight: nbdkit before 1.34 may abort if a client vanishes
        then, and the server may be somebody else's."""
        if self.served is not None:
            try:
                while self.handle.aio_in_flight():
                    self.handle.poll(clients.TICK)
            except clients.libnbd().Error:
                pass                    # there is no connection any more

    def extents(self, begin, end):
        if self.served is None:
            for at, length, is_hole in rawfile.pieces(self.image.path):
                first, last = max(at, begin), min(at + length, end)
                if first < last:
                    yield first, last - first, \
                        clients.HOLE | clients.ZERO if is_hole else 0
            return
        try:
            yield from clients.extents(self.handle, begin, end)
        except clients.libnbd().Error as e:
            raise Failure("%s: %s" % (self.image.given, e.string), NOT_MAPPED) from None


def compare(o):
    try:
        status = compare_images(o)
        sys.stdout.flush()
        return status
    except Failure as e:
        # Whatever went wrong, it does not mean that they differ.
        raise Failure(str(e), NOT_READ if e.status == DIFFERENT else e.status) from None
    except OSError as e:
        raise Failure(cli.why(e), NOT_READ) from None


def compare_images(o):
    try:
        pair = [images.image_of(o, name, format) for name, format in
                zip(o.operands, (o.format, o.format_2))]
        inside = not o.strict and can_plugin(pair)
        if not inside:
            one, two = (Disk(image) for image in pair)
            one.connect()
            two.connect()
    except (Failure, OSError) as e:
        raise Failure(cli.why(e), NOT_OPENED) from None
    if inside:
        return compare_inside(o, pair)
    differ = sectors(one.size) != sectors(two.size)
    if one.size != two.size:
        if o.strict:
            say(o, "Strict mode: Image size mismatch!")
            return DIFFERENT
    progress = Progress("compare", o)
    end = min(one.size, two.size)
    found = compare_common(o, one, two, end, progress)
    if found is None and one.size != two.size:
        if differ:
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


# What the plugin says last if the images could be opened, but not read.
CUT_SHORT = "comparing failed after "


def is_file(image):
    """A raw one of this host: no server is needed."""
    return image.format == "raw" and not image.uri and \
        rawfile.regular_size(image.path) is not None


def can_plugin(pair):
    """(It would use the same passphrase for both.)"""
    return "qcow2" in [image.format for image in pair] and all(
        not image.uri and not image.secrets and is_data(image.path) for image in pair)


def is_data(path):
    kind = os.stat(path).st_mode
    return stat.S_ISREG(kind) or stat.S_ISBLK(kind)


def compare_inside(o, pair):
    one, two = pair if pair[0].format == "qcow2" else reversed(pair)
    report = programs.text_file()
    progress = Progress("compare", o)
    progress.show(0)
    result = one.prepare("compare=/dev/fd/%d" % report, "compare-with=" + two.path,
                         "compare-format=" + two.format, "serve=false",
                         writing=False, fds=[report], progress=progress)
    if result.status != 0:
        read = CUT_SHORT in programs.reason(result.said)
        raise Failure(programs.reason(result.said, which=0),
                      NOT_READ if read else NOT_OPENED)
    progress.show(1)
    progress.end()
    found = jsontext.loads(programs.text_of(report))
    sizes = found["virtual-size"], found["other-virtual-size"]
    at = found["difference"]
    if (at is None or at >= min(sizes)) and sectors(sizes[0]) != sectors(sizes[1]):
        say(o, "Warning: Image size mismatch!")
    if at is not None:
        say(o, "Content mismatch at offset %d!" % at)
        return DIFFERENT
    say(o, "Images are identical.")
    return SAME


def sectors(size):
    """As for qemu-img, sizes are whole ones."""
    return images.round_up(size, images.SECTOR)


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
    """The first sector of PIECES that is different (without TWO, not zeros), or None."""
    disks = [d for d in (one, two) if d]
    try:
        return first_of(disks, pieces, progress)
    finally:
        for disk in disks:
            disk.drain()


def first_of(disks, pieces, progress):
    pool = Pool()
    whole = max(d.size for d in disks)
    flying = []
    for begun in begin_all(disks, pool, pieces):
        flying.append(begun)
        # What is there is still in the cache of the processor.
        if len(flying) > DEPTH or not any(flying[0][2]):
            at, buffers, cookies = flying.pop(0)
            progress.show(at / whole)
            found = judge(disks, at, buffers, cookies)
            if found is not None:
                return found
            pool.give(buffers)
    for begun in flying:
        progress.show(begun[0] / whole)
        found = judge(disks, *begun)
        if found is not None:
            return found
    return None


def begin_all(disks, pool, pieces):
    """Yields (offset, buffers, cookies).  If it fails, that is the last one, in place of
    the buffers: what is in flight lies before it."""
    at = 0
    try:
        for at, length in cut(pieces):
            buffers = [pool.take(length) for _ in disks]
            yield at, buffers, [d.begin(b, at) for d, b in zip(disks, buffers)]
    except (Failure, OSError) as e:
        yield at, e, []


class Pool:
    """Memory is zeroed when it is allocated, so that of whole pieces is used again."""

    def __init__(self):
        self.free = []

    def take(self, length):
        return self.free.pop() if self.free and length == PIECE else bytearray(length)

    def give(self, buffers):
        self.free += [b for b in buffers if len(b) == PIECE]


def cut(pieces):
    for at, length, flags in pieces:
        if flags & clients.ZERO:
            continue
        for begin in range(at, at + length, PIECE):
            yield begin, min(PIECE, at + length - begin)


def judge(disks, at, buffers, cookies):
    """When the data is there, the offset of the first sector that is different."""
    if isinstance(buffers, Exception):
        raise buffers
    for disk, cookie in zip(disks, cookies):
        disk.await_data(cookie)
    a, b = buffers if len(buffers) == 2 else (buffers[0], bytearray(len(buffers[0])))
    if a == b:
        return None
    return next(at + i for i in range(0, len(a), images.SECTOR)
                if a[i:i + images.SECTOR] != b[i:i + images.SECTOR])


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
