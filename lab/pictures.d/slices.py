# SPDX-License-Identifier: BSD-3-Clause
"""What if only a part of the tables fits in the cache, for each slice size?  The tables
of disks whose clusters lie in order, and of disks whose clusters lie at random."""

from cases import PARTS, SLICES, limited, size_name, spots_client, spots_group
from draw import Panel, line, published, svg
from images import GiB
from rows import pair
from servers import KINDS, LABELS

CLUSTER = 65536
DISKS = (8 * GiB, 40 * GiB)
ORDERS = {"in order": False, "at random": True}
NOTES = [
    "Published: 40 GB (A. Garcia, qcow2: Default to 4KB for the qcow2 cache entry size,"
    " commit in QEMU, 2019), and 20 GB (A. Garcia, Improving disk I/O performance in QEMU"
    " 2.5 with the qcow2 L2 cache, 2015).  On other machines, where a miss was a read"
    " from the disk of the host; here the image is in its memory, unless it was measured"
    " with --cold.",
]
PUBLISHED = {
    # The caches had 1, 3 and 5 MB.
    4096: (6545, 12045, 55680), 16384: (5177, 9798, 56278), 65536: (2718, 5326, 57355)}
# 1, 1.5, 2 and 2.5 MB.
PUBLISHED_2015 = ((0.4, 5100), (0.6, 7300), (0.8, 12700), (1.0, 63600))
MARKS = {4096: 7, 16384: 5, 65536: 9}
DASHES = {4096: 1, 16384: 3, 65536: 4}


def groups(config):
    made = []
    for order, mixed in ORDERS.items():
        for size in DISKS:
            name = "%s, %s" % (size_name(size), order)
            rows = []
            for slice_size in SLICES:
                for part in PARTS:
                    if config.quick and (slice_size > SLICES[0] or size > DISKS[0]):
                        continue
                    row = limited(
                        name, pair(config.path("spots.raw"), config.path("spots.qcow2")),
                        size // CLUSTER * 8, part, slice_size,
                        spots_client(config, size), {}, warm=False, writes=False)
                    row.curve = (name, slice_size, part)
                    rows.append(row)
            if rows:
                made.append(spots_group(config, size, CLUSTER, rows, mixed))
    return made


def panel(group):
    name = group.rows[0].curve[0]
    lines = []
    for kind in KINDS:
        for slice_size in SLICES:
            lines.append(line(
                [row for row in group.rows if row.curve[1] == slice_size], kind,
                "%s, %s" % (LABELS[kind], size_name(slice_size)),
                mark=MARKS[slice_size], dash=DASHES[slice_size]))
    if name.startswith(size_name(DISKS[1])):
        lines += [published("published, %s" % size_name(slice_size),
                            zip(PARTS, figures), mark=MARKS[slice_size] - 1,
                            dash=DASHES[slice_size])
                  for slice_size, figures in PUBLISHED.items()]
    else:
        lines.append(published("published, 64K, 20 GB", PUBLISHED_2015, mark=8, dash=4))
    return Panel("%s, clusters of %s %s" % ((size_name(DISKS[0])
                 if name.startswith(size_name(DISKS[0])) else size_name(DISKS[1])),
                 size_name(CLUSTER), name.partition(", ")[2]),
                 "part of the tables for which the cache has room",
                 "random reads of 4K per second", lines,
                 tics=[(x, "%g" % x) for x in (0.2, 0.4, 0.6, 0.8, 1)], log="y")


def draw(groups, path):
    return svg(path, "A cache that is too small: slices of 4K, 16K, 64K",
        [panel(group) for group in groups], notes=NOTES)
