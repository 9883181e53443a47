# SPDX-License-Identifier: BSD-3-Clause
"""Which partitions and filesystems a disk has."""


class Partitions(list):
    mbr_extended = False


def partitions(head):
    """Numbers of the partitions, but for logical ones."""
    found = Partitions()
    if head[510:512] != b"\x55\xaa":
        return found
    entries = [head[446 + 16 * i:462 + 16 * i] for i in range(4)]
    if head[512:520] == b"EFI PART":
        n = int.from_bytes(head[592:596], "little")
        size = int.from_bytes(head[596:600], "little")
        at = int.from_bytes(head[584:592], "little") * 512
        if size < 128 or size > 4096:
            return found
        for i in range(min(n, 128)):
            kind = head[at + i * size:at + i * size + 16]
            if len(kind) == 16 and any(kind):
                found.append(i + 1)
        return found
    # A boot sector of FAT has the mark too, and anything in place of partitions.
    if any(e[0] not in (0, 0x80) for e in entries) or looks_like_fat(head):
        return found
    for i, e in enumerate(entries):
        if e[4] in (5, 0xf, 0x85):
            found.mbr_extended = True
        elif e[4] and any(e[12:16]):
            found.append(i + 1)
    return found


def looks_like_fat(head):
    return head[54:57] == b"FAT" or head[82:87] == b"FAT32"


def filesystem(volume):
    """Its kind, and the command that checks it and changes nothing."""
    with open(volume, "rb") as f:
        head = f.read(2048)
    if head[1080:1082] == b"\x53\xef":
        return "ext2, ext3 or ext4", ["e2fsck", "-fn"]
    if head[:4] == b"XFSB":
        return "XFS", ["xfs_repair", "-n", "-f"]
    if head[510:512] == b"\x55\xaa" and looks_like_fat(head):
        return "FAT", ["fsck.vfat", "-n"]
    return None, None
