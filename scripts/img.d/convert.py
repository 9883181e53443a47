# SPDX-License-Identifier: BSD-3-Clause
"""convert and dd: nbdcopy copies from one server to another, or to a raw file."""

import os
import stat
import sys

import cli
import clients
import create
import images
import inside
import locks
import programs
import rawfile
from cli import Command, Failure, Option
from clients import Served
from progress import Progress

REQUEST = 256 << 10             # bytes, nbdcopy's default
MAX_REQUEST = 32 << 20
PIECE = 2 << 20                 # bytes, a multiple of each cluster size
BLOCK = 4096                    # bytes that are not written if they are zeros
IN_FLIGHT = 16                  # pieces
LARGEST_HOLE = 16 << 20         # bytes, as in qemu-img
BROKEN_PIPE = 128 + programs.signal.SIGPIPE


# --- What is read.

class Source:
    """An image, a snapshot in it, or a part of it (WINDOW: offset and length), with nbdkit's
    FILTERS."""

    def __init__(self, image, snapshot=None, layer=False, window=None, cache=None,
                 filters=()):
        self.image = image
        self.served = None
        if image.format == "raw" and not image.uri and window is None and not filters:
            # nbdcopy reads it without a server.
            clients.hold(image, False)
            self.where = image.path
            self.size = rawfile.size(image.path)
            return
        parameters = ["snapshot=" + snapshot] if snapshot is not None else []
        if cache == "none" and image.format == "qcow2":
            parameters.append("cache=none")
        self.served = Served(image, False, parameters, "layer:0" if layer else "", window,
                             (), filters)
        self.where = self.served.uri
        self.size = self.served.size()
        if image.share and self.served.server:
            locks.refuse_open(self.served.server.pid)

    def connect(self):
        self.served = self.served or Served(self.image)
        return self.served.connect()

    def explain(self, why):
        return self.served.explain(why) if self.served else why


def from_stdin(format):
    """What comes from stdin, as an image.  A pipe is first copied to a file, because an
    image is not read in order, and because its size has to be known."""
    found = os.fstat(0)
    if stat.S_ISREG(found.st_mode) and os.lseek(0, 0, os.SEEK_CUR) == 0:
        name = os.readlink("/proc/self/fd/0")
        # It can have been removed.
        if os.path.exists(name) and os.path.samestat(os.stat(name), found):
            return images.Image(name, format)
    name = os.path.join(programs.directory(), "stdin")
    with cli.About(name), open(name, "xb") as f:
        while True:
            with cli.About("stdin"):
                piece = os.read(0, 1 << 20)
            if not piece:
                break
            if piece.strip(b"\0"):
                f.write(piece)
            else:
                f.seek(len(piece), os.SEEK_CUR)
        f.truncate()
    return images.Image(name, format)


def snapshot_name(text):
    """-l NAME, or -l snapshot.id=ID or snapshot.name=NAME."""
    if text is None or not text.startswith("snapshot."):
        return text
    given = dict(images.key_values(text))
    name = given.pop("snapshot.id", None) or given.pop("snapshot.name", None)
    if name is None or given:
        raise Failure("-l %s: either snapshot.id or snapshot.name is required" % text)
    return name


# --- What is written.

# The part of the work that preallocation is.
FILLING = 0.3

class NewTarget:
    """An image that appears when it is complete.  Unless it replaces another one, it is
    durable only if CACHE asks for that, as with qemu-img."""

    def __init__(self, image, given, secrets, cache, parameters, progress):
        self.image = image
        self.given = given
        self.progress = progress
        self.file = create.NewFile(image, given.get("data_file"))
        if cache in (None, "unsafe") and not self.file.replaces():
            cache = "unsafe"
            self.file.durable = False
        elif cache != "none":
            cache = "default"
        self.cache = cache
        self.flush = self.file.durable
        self.zero = "backing_file" not in given and not (
            image.format == "raw" and self.file.direct)
        self.made = images.Image(self.file.name, image.format, secrets, False,
                                 image.allow_uri)
        self.parameters = parameters + (
            ["cache=" + cache] if image.format == "qcow2" else [])
        self.is_made = False
        self.filters = ()

    def make_raw(self, size):
        mode = "r+b" if self.file.direct else "xb"
        with open(self.file.name, mode) as f:
            old = f.seek(0, os.SEEK_END)
            rawfile.set_size(f, self.image.given, old, size,
                             self.given.get("preallocation", "off"), self.progress)

    def make(self, size):
        """With a disk of this size.  Returns the parameters with which the plugin does
        that when it is started first."""
        if self.is_made:
            return []
        self.is_made = True
        fills = self.given.get("preallocation") in ("falloc", "full")
        if fills:
            self.progress.within(0, FILLING)
        if self.image.format == "raw":
            self.make_raw(size)
            parameters = []
        else:
            parameters = create.parameters_of(self.given, size) + \
                (["overwrite=true"] if self.file.direct else [])
        if fills:
            parameters = self.fill(parameters)
            self.progress.within(FILLING, 1)
        return parameters

    def fill(self, parameters):
        """Makes it now, so that the time which that takes is shown.  What is left to do."""
        if parameters:
            self.progress.counts_create = True
            self.made.change(*parameters, "cache=" + self.cache, progress=self.progress)
            self.progress.counts_create = False
        return []

    def serve(self, window, size):
        return Served(self.made, True, self.parameters + self.make(size), "", window, (),
                      self.filters)

    def path(self):
        """If nbdcopy can write it without a server: it makes it anew."""
        anew = self.made.format == "raw" and not self.file.direct and \
            self.given.get("preallocation", "off") == "off"
        return self.made.path if anew else None

    def complete(self):
        if self.path():
            with open(self.path(), "ab") as f:
                f.truncate(images.round_up(f.tell(), images.SECTOR))
        self.file.complete()


class OldTarget:
    """An image that exists, or an NBD export."""

    flush = True

    def __init__(self, image, zero, cache, parameters):
        self.made = self.image = image
        self.zero = zero
        self.filters = ()
        self.parameters = list(parameters)
        if cache == "none" and image.format == "qcow2":
            self.parameters.append("cache=none")

    def serve(self, window, size):
        if window:
            self.refuse_small(Served(self.image), size).stop()
        served = Served(self.made, True, self.parameters, "", window, (), self.filters)
        # (Of an NBD export, nbdcopy finds out: its server may admit one client, once.)
        return served if window or not served.server else self.refuse_small(served, size)

    def refuse_small(self, served, size):
        have = served.size()
        if have < size:
            raise Failure("%s: the disk has %d bytes, fewer than what is copied (%d)"
                          % (self.image.given, have, size))
        return served

    def path(self):
        return None

    def complete(self):
        pass


class Copying:
    """How nbdcopy copies; or if it SALVAGEs what can be read, this program."""

    def __init__(self, requests=None, sparse=None, cluster=None, salvage=False):
        self.options = []
        self.cluster = cluster
        self.salvage = salvage
        self.by_default = requests is None and sparse is None and not salvage
        self.allocates = sparse == 0
        # Without it, nbdcopy does not write zeros as data.
        self.filters = ["--filter=nozero"] if self.allocates else []
        # Zeros are data, which is compressed.
        self.compress = [] if cluster is None else \
            ["compress=all" if self.allocates else "compress=on"]
        if requests is not None:
            self.options.append("--requests=%d" % requests)
        if cluster is not None:
            # Only whole clusters are compressed.
            self.options.append("--request-size=%d" % min(max(REQUEST, cluster),
                                                          MAX_REQUEST))
        if self.allocates:
            self.options += ["--allocated", "--sparse=0"]
        elif sparse is not None or cluster is not None:
            self.options.append("--sparse=%d" % (cluster or sparse))

    def must_be_here(self, sources):
        """nbdcopy cannot salvage, and would write clusters in parts, which are not
        compressed: those in which one source ends and the next one begins, and with zeros
        as data those where data ends."""
        return self.salvage or self.cluster and (
            self.allocates or any(s.size % self.cluster for s in sources[:-1]))

    def to(self, target):
        found = list(self.options)
        if target.zero and not self.allocates:
            found.append("--destination-is-zero")
        if target.flush:
            found.append("--flush")
        return found


def size_of_all(sources):
    return sum(images.round_up(s.size, images.SECTOR) for s in sources)


def copy_all(sources, target, copying, progress):
    """The sources one after the other."""
    progress.show(0)
    if target.image.format == "qcow2":
        target.filters = copying.filters
    if copying.must_be_here(sources):
        copy_here(sources, target, copying, progress)
    else:
        copy_each(sources, target, copying, progress)
    progress.show(1)
    progress.end()


def copy_each(sources, target, copying, progress):
    total = sum(s.size for s in sources)
    end = size_of_all(sources)
    at = 0
    for source in sources:
        window = (at, source.size) if len(sources) > 1 else None
        share = (at / total, (at + source.size) / total) if total else (0, 1)
        if source.size:
            copy_one(source, target, window, copying, progress, share, end)
        elif target.path() is None:
            target.serve(None, end).connect().shutdown()
        at += images.round_up(source.size, images.SECTOR)


def copy_one(source, target, window, copying, progress, share, size):
    """SIZE: of the whole target."""
    served = None
    where = None if window else target.path()
    if where is None:
        served = target.serve(window, size)
        if served.server:
            served.connect().shutdown()
        where = served.uri
    result = clients.copy(source.where, where, copying.to(target), progress, share)
    if result.status != 0:
        why = programs.reason(result.said, "nbdcopy")
        if served:
            why = served.explain(why)
        raise Failure(source.explain(why))
    if served:
        served.stop()


def copy_here(sources, target, copying, progress):
    """Without nbdcopy: the sources are one disk, of which whole clusters are written."""
    end = size_of_all(sources)
    served = target.serve(None, end)
    writer = served.connect()
    if not target.zero and not copying.allocates:
        clients.zero(writer, 0, end)
    base, start, piece = 0, 0, None
    in_flight = []
    for source in sources:
        reader = source.connect()
        lost = []
        for at, length, zero in runs_of(reader, source.size):
            at += base
            while length and (copying.allocates or not zero):
                if piece is None or at >= start + len(piece):
                    write_piece(served, writer, piece, start, copying, in_flight)
                    start = at - at % PIECE
                    piece = bytearray(min(PIECE, end - start))
                    progress.show(at / end)
                n = min(length, start + len(piece) - at)
                piece[at - start:at - start + n] = readable(
                    source, reader, at - base, n, lost if copying.salvage else None)
                at, length = at + n, length - n
        base += images.round_up(source.size, images.SECTOR)
        for begin, stop, why in lost:
            cli.tell("warning: %s: offset %d: %d bytes cannot be read, and became zeros: %s"
                     % (source.image.given, begin, stop - begin, why))
    write_piece(served, writer, piece, start, copying, in_flight)
    finish_writes(served, writer, in_flight, 0)
    if target.flush and writer.can_flush():
        clients.wait(writer, writer.aio_flush())
    writer.shutdown()
    served.stop()


def write_piece(served, writer, piece, start, copying, in_flight):
    """Those blocks that are not zeros."""
    if piece is None:
        return
    block = len(piece) if copying.allocates else copying.cluster or BLOCK
    at = 0
    while at < len(piece):
        end = at
        while end < len(piece) and (copying.allocates or any(piece[end:end + block])):
            end = min(end + block, len(piece))
        if end > at:
            data = clients.libnbd().Buffer.from_bytearray(piece[at:end])
            in_flight.append((writer.aio_pwrite(data, start + at), data))
            finish_writes(served, writer, in_flight, IN_FLIGHT)
        at = end + block


def finish_writes(served, writer, in_flight, most):
    """Until there are MOST."""
    try:
        while len(in_flight) > most:
            clients.wait(writer, in_flight.pop(0)[0])
    except clients.libnbd().Error as e:
        raise Failure(served.explain(clients.why(served.image.given, e))) from None


def runs_of(reader, size):
    """(offset, length, does it read as zeros?)  If the tables that say so cannot be read,
    what they describe may be data."""
    at = 0
    try:
        for begin, length, flags in clients.extents(reader, 0, size):
            at = begin + length
            yield begin, length, flags & clients.ZERO
    except clients.libnbd().Error:
        yield at, size - at, False


def readable(source, reader, at, length, lost):
    """LOST: [begin, end, reason] of what is not; None: that is a failure."""
    try:
        return clients.read(reader, at, length)
    except clients.libnbd().Error as e:
        if lost is None or not reader.aio_is_ready():
            raise Failure(source.explain(clients.why(source.image.given, e))) from None
        if length > images.SECTOR:
            half = images.round_up(length // 2, images.SECTOR)
            return readable(source, reader, at, half, lost) + \
                readable(source, reader, at + half, length - half, lost)
        if not lost or lost[-1][1] != at:
            lost.append([at, at, os.strerror(e.errnum)])
        lost[-1][1] = at + length
        return bytearray(length)


def copy_layer(source, target):
    """Only what the image itself contains, over the backing file of the target."""
    served = target.serve(None, size_of_all([source]))
    served.connect().shutdown()
    program = os.path.join(os.path.dirname(os.path.realpath(sys.argv[0])),
                           "nbdkit-qcow2-apply-changes")
    result = programs.run([sys.executable, program, source.where, served.uri],
                          stdout=programs.text_file())
    if result.status != 0:
        raise Failure(source.explain(served.explain(
            programs.reason(result.said, program))))
    served.stop()


# --- convert

def convert(o):
    format = o.target_format or "raw"
    if images.asks_for_help(o.options):
        create.show_options(format)
        return 0
    refuse(o)
    *names, output = o.operands
    secrets = images.Secrets(o.object)
    snapshot = snapshot_name(o.snapshot)
    opened = [source_image(o, name, secrets) for name in names]
    if len(opened) > 1 and (snapshot is not None or o.bitmaps or o.backing is not None):
        raise Failure("-l, --bitmaps and -B are for one image")
    if snapshot is not None:
        opened[0].need_qcow2("internal snapshots")
    if o.bitmaps and not can_have_bitmaps(opened[0]):
        raise Failure("%s: the image cannot have bitmaps" % opened[0].given)
    given = options_of(o, format)
    rate = images.size_of(o.rate, "-r") if o.rate is not None else 0
    filters = ["--filter=rate", "rate=%d" % (rate * 8)] if rate else []
    layer = o.backing is not None and has_backing(opened[0])
    progress = Progress("convert", o, output == "-")
    copying = Copying(
        number(o.coroutines, "-m", 1, 16),
        sparse_size(o.sparse),
        cluster_size(given) if o.compress else None, o.salvage)

    def sources():
        return [Source(i, snapshot, layer, None, o.src_cache, filters) for i in opened]

    if output == "-":
        return to_stdout(sources(), format, given, secrets, copying, progress)
    image = images.Image(output, format, create.passphrase_of(given, secrets), False,
                         o.allow_uri)
    refuse_same(opened, image)
    if o.no_create or image.uri and format == "raw":
        image.secrets = secrets.only()
        target = OldTarget(image, o.target_is_zero, o.cache, copying.compress)
        alone = False
    else:
        target = NewTarget(image, given, image.secrets, o.cache, copying.compress,
                           progress)
        alone = len(opened) == 1 and copying.by_default and not rate and \
            inside.possible(opened[0], snapshot, image, given)
    if layer:
        import info
        target.made.secrets = [*target.made.secrets, *opened[0].secrets_below(
            [info.describe(opened[0])])]
        copy_layer(*sources(), target)
    elif alone:
        inside.copy(opened[0], snapshot, target, progress)
    else:
        copy_all(sources(), target, copying, progress)
    if copying.allocates and format == "raw":
        rawfile.allocate(target.made)
    if o.bitmaps:
        copy_bitmaps(opened[0], target.made, o.skip_broken_bitmaps)
    target.complete()
    return 0


def refuse_same(sources, target):
    """(Other files of their chains are locked when they are opened.)"""
    for source in sources:
        if not source.uri and not target.uri and os.path.exists(target.path) and \
                os.path.samefile(source.path, target.path):
            raise Failure("%s: source and target are the same file" % target.given)


def can_have_bitmaps(image):
    import info
    return info.can_have_bitmaps(image)


def refuse(o):
    if o.copy_range_offloading:
        for option, given in (("-S", o.sparse is not None), ("-c", o.compress),
                              ("--salvage", o.salvage)):
            if given:
                raise Failure("-C cannot be used with " + option)
    if o.salvage and (o.backing is not None or o.operands[-1] == "-"):
        raise Failure("--salvage cannot be used with -B, or for stdout")
    if o.target_image_opts:
        raise Failure("--target-image-opts is not supported: use -n, -O and the name")
    if o.compress and o.target_format != "qcow2":
        raise Failure("-c: raw images cannot be compressed: use -O qcow2")
    if o.bitmaps and o.target_format != "qcow2":
        raise Failure("--bitmaps: raw images have no bitmaps: use -O qcow2")
    if o.no_create and o.options:
        raise Failure("-n: options (-o) are for new images")
    if o.target_is_zero and not o.no_create:
        raise Failure("--target-is-zero requires -n")
    if o.skip_broken_bitmaps and not o.bitmaps:
        raise Failure("--skip-broken-bitmaps requires --bitmaps")


def options_of(o, format):
    given = create.options_of(o.options, format)
    if "size" in given:
        images.size_of(given.pop("size"))
        cli.tell("warning: -o size has no effect: the size is that of what is copied")
    if o.backing is not None:
        given.setdefault("backing_file", o.backing)
    if o.backing_format is not None:
        given.setdefault("backing_fmt", o.backing_format)
    o.backing = given.get("backing_file")
    if format != "qcow2" and ("backing_file" in given or "backing_fmt" in given):
        raise Failure("raw images have no backing file")
    create.check_backing(given)
    return given


def source_image(o, name, secrets):
    if name == "-":
        return from_stdin(o.format)
    return images.image_of(o, name, o.format, secrets)


def number(text, what, least, most):
    found = None if text is None else images.number_of(text, what, least)
    if found is not None and found > most:
        raise Failure("%s: %d is more than %d" % (what, found, most))
    return found


def sparse_size(text):
    """Bytes, as nbdcopy takes them: 0 or a power of two."""
    if text is None:
        return None
    size = images.size_of(text, "-S")
    if size % images.SECTOR or size > LARGEST_HOLE:
        raise Failure("-S: '%s' is not a multiple of 512 up to 16M" % text)
    return 1 << size.bit_length() - 1 if size else 0


def cluster_size(given):
    return int(given.get("cluster_size", 65536))


def has_backing(image):
    import info
    return image.format == "qcow2" and "backing-filename" in info.describe(image)


def to_stdout(sources, format, given, secrets, copying, progress):
    if os.isatty(1):
        raise Failure("-: an image is not written to a terminal")
    if format == "raw" and len(sources) == 1:
        result = clients.copy(sources[0].where, "-", [], progress, stdout=1)
        progress.end()
        if result.status == BROKEN_PIPE:
            programs.interrupt(programs.signal.SIGPIPE, None)
        if result.status != 0:
            raise Failure(sources[0].explain(programs.reason(result.said,
                                                                    "nbdcopy")))
        return 0
    image = images.Image(os.path.join(programs.directory(), "stdout"), format,
                         create.passphrase_of(given, secrets))
    target = NewTarget(image, given, image.secrets, "unsafe", copying.compress, progress)
    copy_all(sources, target, copying, progress)
    target.complete()
    # (Not sendfile, which cannot append.)
    import shutil
    with open(image.path, "rb") as f, open(1, "wb", closefd=False) as out:
        shutil.copyfileobj(f, out)
    return 0


def copy_bitmaps(source, target, skip_broken):
    """The bitmaps of the image get the same marks and flags in its copy."""
    import info
    for b in info.bitmaps_of(source):
        if "in-use" in b["flags"]:
            if skip_broken:
                cli.tell("warning: the bitmap '%s' is inconsistent and was skipped"
                         % b["name"])
                continue
            raise Failure("%s: the bitmap '%s' is inconsistent: remove it, or use "
                          "--skip-broken-bitmaps" % (source.given, b["name"]))
        target.change("bitmap-add=" + b["name"],
                      "bitmap-granularity=%d" % b["granularity"],
                      *([] if "auto" in b["flags"] else ["bitmap-disable=" + b["name"]]),
                      "bitmap-merge=" + b["name"], "bitmap-into=" + b["name"],
                      "bitmap-from=" + source.path)


# --- dd

def dd(o):
    words = dict(split_word(w) for w in o.operands)
    for key in words:
        if key not in ("if", "of", "bs", "count", "skip"):
            raise Failure("dd: unknown operand '%s='" % key)
    if "if" not in words or "of" not in words:
        raise Failure("dd: both if= and of= are required")
    block = images.size_of(words.get("bs", "512"), "bs")
    if block == 0:
        raise Failure("dd: bs=0")
    image = images.image_of(o, words["if"], o.format)
    target_image = images.Image(words["of"], o.target_format or "raw", (), False,
                                o.allow_uri)
    refuse_same([image], target_image)
    progress = Progress("dd", o)
    if target_image.uri and target_image.format == "raw":
        target = OldTarget(target_image, False, None, [])
    else:
        target = NewTarget(target_image, {}, [], None, [], progress)
    size = Source(image).size
    skip = images.size_of(words.get("skip", "0"), "skip") * block
    if "count" in words:
        size = min(size, images.size_of(words["count"], "count") * block)
    if skip > size:
        raise Failure("%s: cannot skip to %d, because there are %d bytes"
                      % (image.given, skip, size))
    size -= skip
    sources = [Source(image, window=(skip, size))] if size else []
    copy_all(sources, target, Copying(), progress)
    if not sources and target_image.format == "qcow2":
        target.serve(None, 0).stop()
    target.complete()
    return 0


def split_word(word):
    key, equals, value = word.partition("=")
    if not equals:
        raise Failure("dd: '%s' is not KEY=VALUE" % word)
    return key, value


SOURCE_FORMAT = Option("f", "format", "the format of what is read; without it, it is "
                       "probed", "FORMAT")
TARGET_FORMAT = Option("O", "target-format",
                       "the format of what is written (default raw)", "FORMAT")

COMMANDS = {
    "convert": Command(
        "convert", "IMAGE... TARGET",
        "Copy disks to a new image: one, or several, which follow each other in it.  "
        "IMAGE and TARGET are files, devices or NBD URIs; - is stdin or stdout.",
        [SOURCE_FORMAT, TARGET_FORMAT,
         Option("o", "options", "KEY=VALUE,...: options of the new image; help lists "
                "them", "OPTIONS", True),
         Option("c", "compress", "compress the new image"),
         Option("l", "snapshot", "copy this internal snapshot (a name, an id, "
                "snapshot.name=NAME or snapshot.id=ID)", "SNAPSHOT"),
         Option("B", "backing", "the backing file of the new image, which has to contain "
                "the same as that of IMAGE: only what IMAGE itself contains is copied",
                "FILE"),
         Option("F", "backing-format", "its format", "FORMAT"),
         Option(None, "bitmaps", "also copy the persistent bitmaps"),
         Option(None, "skip-broken-bitmaps", "but not inconsistent ones"),
         Option("n", "no-create", "TARGET exists and is large enough"),
         Option(None, "target-is-zero", "TARGET reads as zeros (requires -n)"),
         Option("S", "sparse", "how many zeros become a hole (default 4K); with 0 all of "
                "the new image is allocated", "SIZE"),
         Option("m", "coroutines", "the number of requests in flight", "N"),
         Option("W", "oob", "accepted: pieces are always written in any order"),
         Option("C", "copy-range-offloading", "accepted, without effect; not with -S, -c "
                "and --salvage"),
         cli.PROGRESS, cli.QUIET, cli.CACHE, cli.SOURCE_CACHE, cli.SHARE,
         Option("r", "rate", "read at most so many bytes in a second", "RATE"),
         Option(None, "salvage", "what cannot be read becomes zeros"),
         Option(None, "target-image-opts", "refused"), *cli.IMAGE],
        convert, 2, None),
    "dd": Command(
        "dd", "if=IMAGE of=TARGET [bs=SIZE] [count=N] [skip=N]",
        "Copy a part of a disk to a new image.  As with qemu-img, COUNT includes the "
        "blocks that are skipped.",
        [SOURCE_FORMAT, TARGET_FORMAT, cli.SHARE, *cli.IMAGE], dd, 0, None),
}
