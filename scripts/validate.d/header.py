# SPDX-License-Identifier: BSD-3-Clause
"""What does the first cluster of a qcow2 file say, and is it valid?

This is code of its own, and not the plugin's, because a stream has to be judged when only
its beginning has arrived.  The bytes may be hostile: everything has a limit, and nothing
is followed.
"""

import struct

import formats

MAGIC = b"QFI\xfb"
LARGEST_CLUSTER = 2 << 20
BASICS = 24                     # bytes that contain the size of a cluster

# Bits of incompatible_features.
DIRTY, CORRUPT, DATA_FILE, COMPRESSION, EXTENDED_L2 = (1 << n for n in range(5))
KNOWN_INCOMPATIBLE = (1 << 5) - 1
KNOWN_COMPATIBLE = 1            # lazy refcounts
KNOWN_AUTOCLEAR = 3             # bitmaps, raw data file
AUTOCLEAR_BITMAPS, AUTOCLEAR_RAW = 1, 2

# Types of extensions.
EXT_END, EXT_BACKING_FORMAT, EXT_FEATURES, EXT_BITMAPS, EXT_CRYPTO, EXT_DATA_FILE = (
    0, 0xe2792aca, 0x6803f857, 0x23852875, 0x0537be77, 0x44415441)
KNOWN_EXTENSIONS = {EXT_BACKING_FORMAT, EXT_FEATURES, EXT_BITMAPS, EXT_CRYPTO,
                    EXT_DATA_FILE}

# Limits; they are those of QEMU.
MAX_L1_ENTRIES = (32 << 20) // 8
MAX_REFTABLE_BYTES = 8 << 20
MAX_SNAPSHOTS, MAX_BITMAPS = 65536, 65535
MAX_BACKING_NAME, MAX_BACKING_FORMAT, MAX_DATA_NAME = 1023, 15, 1023


class Fault(Exception):
    """code, and text: the rest of the header means nothing."""


def first_cluster(head):
    """How many bytes the header may use; HEAD contains the first ones."""
    if len(head) < BASICS or head[:4] != MAGIC:
        return len(head)
    bits, = struct.unpack_from(">I", head, 20)
    return 1 << bits if 9 <= bits <= 21 else 512


class Header:
    """HEAD contains the first cluster, or all of a shorter file; what follows is only looked
    at by formats.

    faults: list of (code, text).  places: list of (what, offset, length), which have to be
    within the file.
    """

    def __init__(self, head):
        self.head = head
        self.faults, self.places = [], []
        self.size = self.version = self.snapshots = self.bitmaps = self.crypt = 0
        self.incompatible = self.compatible = self.autoclear = self.compression = 0
        self.backing_offset = self.backing_bytes = 0
        self.backing = self.data_name = self.backing_format = None
        self.unknown_extensions = []
        self.unused = None      # the offset of bytes that are not zeros, and mean nothing
        self.formats = []       # others that the file has
        try:
            self.basics()
            self.features()
            self.tables()
            self.names()
            self.extensions()
            self.formats = list(formats.at_beginning(head, self.cluster))
            self.overlaps()
        except Fault as e:
            self.faults.append(e.args)

    def number(self, at, letter):
        return struct.unpack_from(">" + letter, self.head, at)[0]

    def basics(self):
        head = self.head
        if head[:4] != MAGIC:
            raise Fault("format", "it does not begin with \"QFI\\xfb\": not a qcow2 image")
        if len(head) < 8:
            raise Fault("truncated", "it ends within the header")
        self.version = self.number(4, "I")
        if self.version not in (2, 3):
            raise Fault("version", "version is %d, not 2 or 3" % self.version)
        if len(head) < (72 if self.version == 2 else 104):
            raise Fault("truncated", "it ends within the header")
        # What decides most must be known, whatever else is wrong.
        self.backing_offset, self.backing_bytes = (self.number(8, "Q"),
                                                   self.number(16, "I"))
        if self.version == 3:
            self.incompatible, self.compatible, self.autoclear = struct.unpack_from(
                ">3Q", head, 72)
        bits = self.number(20, "I")
        if not 9 <= bits <= 21:
            raise Fault("header", "cluster_bits is %d, not 9 to 21" % bits)
        self.cluster_bits, self.cluster = bits, 1 << bits
        if len(head) < self.cluster:
            raise Fault("truncated", "it ends within the first cluster")
        self.length = 72 if self.version == 2 else self.number(100, "I")
        if self.version == 3 and not 104 <= self.length <= self.cluster:
            raise Fault("header", "header_length is %d" % self.length)

    def features(self):
        if self.version == 3:
            if self.number(96, "I") > 6:
                raise Fault("header", "refcount_order is %d" % self.number(96, "I"))
            self.compression = self.head[104] if self.length > 104 else 0
        if self.incompatible & ~KNOWN_INCOMPATIBLE:
            raise Fault("unknown-feature", "incompatible features that are not known: 0x%x"
                        % (self.incompatible & ~KNOWN_INCOMPATIBLE))
        if self.compression > 1:
            raise Fault("header", "unknown compression type %d" % self.compression)
        if bool(self.incompatible & COMPRESSION) != (self.compression != 0):
            raise Fault("header", "the compression type contradicts its feature bit")
        if self.autoclear & AUTOCLEAR_RAW and not self.incompatible & DATA_FILE:
            raise Fault("header", "a raw data file, but no data file")
        self.crypt = self.number(32, "I")
        if self.crypt > 2:
            raise Fault("header", "unknown encryption method %d" % self.crypt)
        if self.incompatible & EXTENDED_L2 and self.cluster_bits < 14:
            raise Fault("header", "extended L2 entries in clusters of %d bytes"
                        % self.cluster)

    def place(self, what, offset, length):
        if offset & (self.cluster - 1):
            raise Fault("header", "the %s is at %d, not at the beginning of a cluster"
                        % (what, offset))
        if length == 0:
            return
        if offset < self.cluster:
            raise Fault("header", "the %s is in the first cluster" % what)
        if offset + length > 1 << 56:
            raise Fault("header", "the %s is at %d, beyond all limits" % (what, offset))
        self.places.append((what, offset, length))

    def tables(self):
        self.size, = struct.unpack_from(">Q", self.head, 24)
        l1_entries, l1 = self.number(36, "I"), self.number(40, "Q")
        reftable, reftable_clusters = self.number(48, "Q"), self.number(56, "I")
        self.snapshots = self.number(60, "I")
        entry_bits = 4 if self.incompatible & EXTENDED_L2 else 3
        covered = self.cluster_bits * 2 - entry_bits
        if l1_entries > MAX_L1_ENTRIES:
            raise Fault("sizes", "the L1 table has %d entries, more than %d"
                        % (l1_entries, MAX_L1_ENTRIES))
        if l1_entries << covered < self.size:
            raise Fault("sizes", "the L1 table has %d entries, too few for a disk of %d "
                        "bytes" % (l1_entries, self.size))
        self.place("L1 table", l1, l1_entries * 8)
        if not 1 <= reftable_clusters <= MAX_REFTABLE_BYTES >> self.cluster_bits:
            raise Fault("sizes", "the refcount table has %d clusters" % reftable_clusters)
        self.place("refcount table", reftable, reftable_clusters << self.cluster_bits)
        if self.snapshots > MAX_SNAPSHOTS:
            raise Fault("sizes", "%d snapshots, more than %d"
                        % (self.snapshots, MAX_SNAPSHOTS))
        self.place("snapshot table", self.number(64, "Q"), self.snapshots * 40)

    def text(self, at, length):
        """A name, up to its first NUL; None if it is empty."""
        name = self.head[at:at + length].split(b"\0")[0]
        if any(c < 0x20 or c == 0x7f for c in name):
            raise Fault("header", "the name or format of a file contains a control "
                        "character")
        return name.decode("utf-8", "surrogateescape") or None

    def names(self):
        at, n = self.backing_offset, self.backing_bytes
        if at == 0:
            return
        if at > self.cluster:
            raise Fault("header", "the name of the backing file is not in the first "
                        "cluster")
        if n == 0:
            return
        if at < self.length or n > MAX_BACKING_NAME or at + n > self.cluster:
            raise Fault("header", "the name of the backing file, %d bytes at %d, is in an "
                        "invalid place" % (n, at))
        self.backing = self.text(at, n)

    def extensions(self):
        at = self.length
        end = min(self.backing_offset or self.cluster, self.cluster)
        seen = set()
        while at < end:
            if at + 8 > end:
                raise Fault("header", "a header extension does not fit in")
            kind, n = struct.unpack_from(">II", self.head, at)
            at += 8
            if at + n > end:
                raise Fault("header", "header extension 0x%08x has %d bytes, too many"
                            % (kind, n))
            if kind == EXT_END:
                at -= 4         # its length means nothing
                break
            if kind not in KNOWN_EXTENSIONS:
                if len(self.unknown_extensions) < 8:
                    self.unknown_extensions.append(kind)
            elif kind in seen:
                raise Fault("header", "header extension 0x%08x appears twice" % kind)
            seen.add(kind)
            self.extension(kind, at, n)
            at += n + 7 & ~7
        self.find_unused(min(at, end))
        if self.crypt == 2 and EXT_CRYPTO not in seen:
            raise Fault("header", "LUKS, but no encryption header")

    def find_unused(self, at):
        """Behind the extensions, which end at AT, and the name of the backing file."""
        name_end = self.backing_offset + self.backing_bytes if self.backing_offset else at
        for begin, end in ((at, self.backing_offset), (max(at, name_end), self.cluster)):
            rest = self.head[begin:end]
            if rest.count(0) < len(rest):
                self.unused = begin + len(rest) - len(rest.lstrip(b"\0"))
                return

    def extension(self, kind, at, n):
        if kind == EXT_BACKING_FORMAT:
            if n > MAX_BACKING_FORMAT:
                raise Fault("header", "a backing format of %d bytes" % n)
            self.backing_format = self.text(at, n)
        elif kind == EXT_DATA_FILE:
            if n > MAX_DATA_NAME:
                raise Fault("header", "a data file's name of %d bytes" % n)
            self.data_name = self.text(at, n)
        elif kind == EXT_CRYPTO:
            if self.crypt != 2 or n != 16:
                raise Fault("header", "an encryption header without LUKS, or of an invalid "
                            "length")
            offset, length = struct.unpack_from(">QQ", self.head, at)
            if length == 0:
                raise Fault("header", "an encryption header of no length")
            self.place("encryption header", offset, length)
        elif kind == EXT_BITMAPS:
            self.bitmap_extension(at, n)

    def bitmap_extension(self, at, n):
        if n != 24:
            raise Fault("header", "a bitmaps extension of %d bytes" % n)
        if not self.autoclear & AUTOCLEAR_BITMAPS:
            return              # outdated
        self.bitmaps, reserved, length, offset = struct.unpack_from(">IIQQ", self.head, at)
        if not 1 <= self.bitmaps <= MAX_BITMAPS or reserved or \
                not 1 <= length <= 1024 * MAX_BITMAPS:
            raise Fault("header", "an invalid bitmaps extension")
        self.place("bitmap directory", offset, length)

    def overlaps(self):
        """No two tables share a byte."""
        places = sorted(self.places, key=lambda p: p[1])
        for (a, start, length), (b, other, _) in zip(places, places[1:]):
            if start + length > other:
                raise Fault("header", "the %s at %d overlaps the %s at %d"
                            % (a, start, b, other))
