# SPDX-License-Identifier: BSD-3-Clause
"""Is a qcow2 file also a file of another format?

Some formats have their mark at a place that qcow2 leaves free: in the first cluster behind
the header, at 32 KiB, or at the end.  Such a file is one thing for the program that checks
it, and another for the one that uses it.

In the first cluster, a mark can only have been put there on purpose.  Everywhere else it
may be data of the disk.  So only those marks count there that are exactly where other
programs look first, and that data of a disk does not have in this place by accident.
"""

import struct

# The longest comment of a ZIP archive, and what precedes it.
ZIP_END = 22
END = 65535 + ZIP_END           # bytes at the end of a file that matter
BEGINNING = (32 << 10) + 4096   # bytes at its beginning, besides the first cluster

# (name, offsets, mark), in the first cluster.
HEADER_MARKS = (
    ("VDI", (64,), b"\x7f\x10\xda\xbe"),
    ("tar", (257,), b"ustar"),
    ("a boot sector", (510,), b"\x55\xaa"),
    ("LVM", (512, 1024, 1536), b"LABELONE"),
    ("GPT", (512, 4096), b"EFI PART"),
    ("ext2, ext3 or ext4", (1080,), b"\x53\xef"),
    ("RAID", (4096,), b"\xfc\x4e\x2b\xa9"),
    ("Linux swap", (4086,), b"SWAPSPACE2"),
    ("Btrfs", ((64 << 10) + 64,), b"_BHRfS_M"),
)
PDF_WITHIN = 1024

# Wherever the first cluster ends.
OPTICAL = ("ISO 9660", (b"CD001",)), ("UDF", (b"BEA01", b"NSR02", b"NSR03"))
OPTICAL_OFFSETS = (32769, 34817)


def at_beginning(head, cluster):
    """The names of formats.  HEAD contains what the file begins with."""
    first = head[:cluster]
    for name, offsets, mark in HEADER_MARKS:
        if any(first.startswith(mark, at) for at in offsets):
            yield name
    if b"%PDF-" in first[:PDF_WITHIN]:
        yield "PDF"
    for name, marks in OPTICAL:
        if any(head.startswith(mark, at) for mark in marks for at in OPTICAL_OFFSETS):
            yield name


def at_end(tail):
    """The same for the last END bytes."""
    # (Very old ones have 511 bytes.)
    if tail.startswith(b"conectix", max(len(tail) - 512, 0)) or \
            tail.startswith(b"conectix", max(len(tail) - 511, 0)):
        yield "VHD"
    if tail.startswith(b"koly", max(len(tail) - 512, 0)):
        yield "DMG"
    if ends_zip(tail):
        yield "ZIP"


def ends_zip(tail):
    """Does it end with that record of an archive, and its comment?"""
    at = tail.rfind(b"PK\5\6")
    while at >= 0:
        if len(tail) - at >= ZIP_END and \
                struct.unpack_from("<H", tail, at + 20)[0] == len(tail) - at - ZIP_END:
            return True
        at = tail.rfind(b"PK\5\6", 0, at)
    return False
