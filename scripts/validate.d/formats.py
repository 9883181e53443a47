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

import formatmarks

# The longest comment of a ZIP archive, and what precedes it.
ZIP_END = 22
END = 65535 + ZIP_END           # bytes at the end of a file that matter
BEGINNING = (32 << 10) + 4096   # bytes at its beginning, besides the first cluster

MARKS = formatmarks.load()
# In the first cluster, behind where qcow2 has its own.
HEADER_MARKS = [(at, mark, name) for at, mark, name, _ in MARKS if at > 0]
PDF, = (mark for _, mark, name, _ in MARKS if name == "PDF")
PDF_WITHIN = 1024
VHD, = (mark for _, mark, name, _ in MARKS if name == "VHD")

# Wherever the first cluster ends.
OPTICAL = "ISO 9660", "UDF"


def at_beginning(head, cluster):
    """The names of formats.  HEAD contains what the file begins with."""
    first = head[:cluster]
    found = [name for at, mark, name in HEADER_MARKS
             if (head if name in OPTICAL else first).startswith(mark, at)]
    if PDF in first[:PDF_WITHIN]:
        found.append("PDF")
    return list(dict.fromkeys(found))


def at_end(tail):
    """The same for the last END bytes."""
    # (Very old ones have 511 bytes.)
    if any(tail.startswith(VHD, max(len(tail) - n, 0)) for n in (511, 512)):
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
