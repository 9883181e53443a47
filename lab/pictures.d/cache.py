# SPDX-License-Identifier: BSD-3-Clause
"""How large a disk does the default cache serve, for each cluster size?  Five cases, with
the cache that QEMU had until 3.0, and with today's."""

from cases import size_name, spots_client, spots_group
from draw import Bars, svg, triple
from images import GiB, MiB, TiB
from plots import COLOURS
from rows import Row, load, pair
from servers import KINDS, LABELS

CASES = [(100 * GiB, 256 * 1024), (100 * GiB, 512 * 1024), (TiB, 512 * 1024), (TiB, MiB),
         (TiB, 2 * MiB)]
THEN = "cache of 1M or 8 clusters, slices as large as clusters (QEMU until 3.0)"
NOW = "default cache (32M, slices of 4K)"
NOTES = [
    "Published (W. Gu, How to Tune QEMU L2 Cache Size and QCOW2 Cluster Size, IBM, 2020):"
    " the second case was over 10 times as fast as the first.",
    "There a miss was a read from the disk of the host; here the image is in its memory,"
    " unless it was measured with --cold.",
]


def groups(config):
    made = []
    for i, (size, cluster) in enumerate(CASES[:2] if config.quick else CASES):
        disk = pair(config.path("spots.raw"), config.path("spots.qcow2"))
        group = spots_group(config, size, cluster, [])
        then = {"l2_cache": max(MiB, 8 * cluster), "l2_slice": cluster}
        for name, settings in ((THEN, then), (NOW, {})):
            group.rows.append(Row(
                "%s, clusters of %s, %s" % (size_name(size), size_name(cluster),
                                            name.partition(" (")[0].partition(",")[0]),
                "IOPS", load(disk, spots_client(config, size), settings, warm=False,
                             writes=False), curve=(name, "case", i)))
        made.append(group)
    return made


def draw(groups, path):
    panels = []
    names = ["%s\n%s" % (size_name(size), size_name(cluster))
             for size, cluster in CASES[:len(groups)]]
    for part in (THEN, NOW):
        rows = [row for group in groups for row in group.rows if row.curve[0] == part]
        panels.append(Bars(part.replace(" (", "\n("), "random reads of 4K per second",
                           names, [(LABELS[kind], COLOURS[kind],
                                    [triple(row, kind) for row in rows])
                                   for kind in KINDS],
                           "disk size, cluster size"))
    return svg(path, "Five cases of disk size and cluster size", panels, notes=NOTES)
