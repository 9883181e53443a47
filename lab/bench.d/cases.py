# SPDX-License-Identifier: BSD-3-Clause
"""What is measured.

CASES: by number, a title and a function that returns the case's groups of rows.
A full run has all rows; --quick has those that matter most, on smaller disks.

config.pool is a raw file of config.size random bytes.  Its own bytes don't matter after
the images that are compared were made from it; so rewrites may change it.

Goals are those that the project has set itself: the plugin against the limit (nbdkit's
file plugin), and against qemu-nbd.
"""

import os

import clients
import images
from clients import bandwidth, copy, iops, job
from images import GiB, MiB, TiB
from live import live
from rows import LESS, Group, Row, commands, load, pair, start
from servers import DEPTH, LIMIT, PLUGIN, QEMU, far_uri


def size_name(n):
    for unit, factor in (("T", TiB), ("G", GiB), ("M", MiB), ("K", 1024)):
        if n >= factor and n % factor == 0:
            return "%d%s" % (n // factor, unit)
    return str(n)


def goals(limit=None, qemu=None):
    wanted = {LIMIT: limit, QEMU: qemu}
    return {k: v for k, v in wanted.items() if v is not None}


# --- 1 and 2: a full disk, written in order

def grid(config):
    """Jobs and depths."""
    return [(1, 1), (1, 16), (4, 16)] if config.quick else [
        (1, 1), (1, 16), (4, 1), (4, 16)]


def often(config):
    """For one server, too, samples of these differ by a third where client and server
    share few CPUs."""
    return 1 if config.quick else 5


def reads(config):
    disk = pair(config.pool, config.path("disk.qcow2"))
    size = config.size
    rows = []
    for jobs, depth in grid(config):
        rows.append(Row(
            "random read 4K, %d x depth %d" % (jobs, depth), "IOPS",
            load(disk, iops("randread", 4096, depth, size, jobs=jobs,
                            seconds=config.seconds)),
            goals=goals(0.97, 2 if depth == 16 else 1)))
    rows.append(Row(
        "sequential read 1M, depth 4", "MiB/s",
        load(disk, bandwidth("read", MiB, 4, size, seconds=config.seconds)),
        goals=goals(0.97, 1)))
    rows.append(Row("nbdcopy of the whole disk", "MiB/s", load(disk, copy(size)),
                    goals=goals(0.97, 1)))
    for row in rows:
        row.often = often(config)
    return [Group("a full disk of %s" % size_name(size), rows,
                  lambda c: images.in_order(c.pool, disk[PLUGIN]), disk=size)]


def rewrites(config):
    disk = pair(config.pool, config.path("disk.qcow2"))
    size = config.size
    rows = []
    for jobs, depth in [(1, 16)] if config.quick else grid(config):
        for folios in ("",) if depth == 1 or config.quick else ("", ", small folios"):
            rows.append(Row(
                "random rewrite 4K, %d x depth %d%s" % (jobs, depth, folios), "IOPS",
                load(disk, iops("randwrite", 4096, depth, size, jobs=jobs,
                                seconds=config.seconds),
                     rewrites=True, small=folios != ""),
                goals=goals(0.97, 1)))
    if not config.quick:
        rows.append(Row(
            "sequential rewrite 1M, depth 4", "MiB/s",
            load(disk, bandwidth("write", MiB, 4, size, seconds=config.seconds),
                 rewrites=True),
            goals=goals(0.97, 1)))
    rows.append(Row(
        "random rewrite 4K, flush after each", "IOPS",
        load(disk, iops("randwrite", 4096, 1, size, seconds=config.seconds, fsync=1),
             rewrites=True),
        goals=goals(0.95, 2)))
    for row in rows:
        row.often = often(config)
    return [Group("a full disk of %s" % size_name(size), rows,
                  lambda c: images.in_order(c.pool, disk[PLUGIN]), disk=size)]


# --- 3: into an empty image

CLUSTERS = (512, 1024, 4096, 65536, 2 * MiB)


def allocation(config):
    """All servers do the same amount of work (see clients.enough).  With clusters of 512
    and 1K it is less: QEMU needs a while for it.  Random writes: as many as there are
    clusters of 64K, no place twice."""
    size = config.size

    def fresh(cluster):
        def image(kind):
            path = config.path("fresh." + kind)
            if kind == LIMIT:
                images.empty_raw(path, size)
            else:
                images.empty_qcow2(path, size, cluster)
            images.touch_memory(config.path("scratch"), size // 2)
            return path
        return image

    def row(name, unit, cluster, client, wanted):
        return Row("%s, clusters of %s" % (name, size_name(cluster)), unit,
                   load(fresh(cluster), client, warm=False), goals=wanted,
                   curve=("3-" + name, "cluster size", cluster))

    sequential = {512: goals(0.5, 10), 4096: goals(0.85, 1.2)}
    rows = []
    for cluster in (512, 65536) if config.quick else CLUSTERS:
        part = {512: 8, 1024: 4}.get(cluster, 1) * (1 if config.quick else 4)
        rows.append(row(
            "sequential write 1M", "MiB/s", cluster,
            bandwidth("write", MiB, 4, max(size // part // MiB, 1) * MiB),
            sequential.get(cluster, goals(0.95, 1.3) if cluster >= 65536 else {})))
    for cluster in (65536,) if config.quick else CLUSTERS:
        n = max(size // 65536 // {512: 8, 1024: 4}.get(cluster, 1), 1)
        rows.append(row(
            "random write 4K, depth 16", "IOPS", cluster,
            iops("randwrite", 4096, 16, size, ios=n),
            goals(0.85, 2) if cluster == 65536 else {}))
    for cluster in (65536,) if config.quick else CLUSTERS:
        rows.append(row(
            "random write 4K, flush after each", "IOPS", cluster,
            iops("randwrite", 4096, 1, size, ios=max(size // 65536 // 16, 1), fsync=1),
            goals(0.6, 5) if cluster == 65536 else {}))
    for r in rows:
        # The others take QEMU long enough.
        if r.curve[2] >= 4096:
            r.often = often(config)
    # Nobody writes more than this: with clusters of 2M each random write takes one
    # until the disk is full.
    return [Group("an empty disk of %s" % size_name(size), rows, disk=3 * size)] + (
        creation(config))


def creation(config):
    """Making an image: seconds, against qemu-img.  The limit: writing the bytes."""
    size = config.size // 4 if config.quick else config.size
    rows = []

    def row(cluster, preallocation):
        def path(kind):
            return config.path("made." + kind)

        def gone(kind):
            if os.path.exists(path(kind)):
                os.unlink(path(kind))

        def argv(kind):
            if kind == LIMIT:
                return ["dd", "if=/dev/zero", "of=" + path(kind), "bs=1M",
                        "count=%d" % (size // MiB), "conv=fsync", "status=none"]
            if kind == QEMU:
                return ["qemu-img", "create", "-q", "-f", "qcow2", "-o",
                        "cluster_size=%d,preallocation=%s" % (cluster, preallocation),
                        path(kind), str(size)]
            return [config.nbdkit, "-U", "-", config.plugin, "file=" + path(kind),
                    "create=%d" % size, "cluster-size=%d" % cluster,
                    "preallocation=" + preallocation, "--run", "true"]

        full = preallocation == "full"
        return Row("create %s, clusters of %s, preallocation=%s"
                   % (size_name(size), size_name(cluster), preallocation), "s",
                   commands(argv, gone), better=LESS,
                   kinds=(LIMIT, QEMU, PLUGIN) if full else (QEMU, PLUGIN),
                   goals=goals(0.95, 10) if full and cluster == 512 else {},
                   curve=("3-create, preallocation=" + preallocation, "cluster size",
                          cluster))

    for cluster in (512,) if config.quick else CLUSTERS:
        for preallocation in ("full",) if config.quick else (
                "off", "metadata", "falloc", "full"):
            rows.append(row(cluster, preallocation))
    config.need(rows, "create")
    return [Group("creation", rows, disk=4 * size)]


# --- 4: how much of the tables is in memory

PARTS = (0.2, 0.6, 1.0)
SLICES = (4096, 16384, 65536)


def limited(name, disk, tables, part, slice_size, client, wanted, **options):
    """A row with a cache for this part of the tables.  OPTIONS: for rows.load."""
    return Row("%s, cache %.1f, slices of %s" % (name, part, size_name(slice_size)),
               "IOPS", load(disk, client, {"l2_cache": int(tables * part),
                                           "l2_slice": slice_size}, **options),
               goals=wanted)


def caches(config):
    """Both servers get the same l2-cache and l2-slice.  (QEMU never has fewer than two
    slices.)"""
    size = config.size
    groups = []

    def group(cluster, order):
        tables = size // cluster * 8
        disk = pair(config.pool, config.path("disk.qcow2"))
        rows = []
        for part in PARTS:
            for slice_size in SLICES:
                if config.quick and (part, slice_size) not in (
                        {"in order": [(0.2, 4096), (1.0, 65536)],
                         "at random": [(0.6, 4096)]}[order]):
                    continue
                limit = None
                if order == "in order":
                    limit = 0.95
                elif part >= 0.6:
                    limit = 0.9
                rows.append(limited(
                    "clusters of %s %s" % (size_name(cluster), order), disk, tables,
                    part, slice_size,
                    iops("randread", 4096, 16, size, seconds=config.seconds),
                    goals(limit, 2)))

        def prepare(config):
            if order == "in order":
                images.in_order(config.pool, disk[PLUGIN], cluster)
            else:
                images.shuffled(config, config.pool, disk[PLUGIN], cluster)

        return Group("clusters of %s, written %s; tables of %s in all" %
                     (size_name(cluster), order, size_name(tables)), rows, prepare, size)

    for cluster in (65536,) if config.quick else (65536, 262144):
        for order in ("in order", "at random"):
            groups.append(group(cluster, order))
    return groups


# --- 5 and 10: large disks

def spots_group(config, size, cluster, rows, mixed=False):
    raw = config.path("spots.raw")

    def prepare(config):
        images.spots_raw(config, raw, size)
        images.spots_qcow2(config, raw, config.path("spots.qcow2"), cluster, mixed)

    # Data, and the tables: L2 entries and refcounts.
    spots = size // images.spots_stride(config, size)
    return Group("a disk of %s, clusters of %s" % (size_name(size), size_name(cluster)),
                 rows, prepare, 2 * spots * 4096 + size // cluster * 10 + 64 * MiB)


def spots_client(config, size, seconds=None):
    # Blocks of 4K at multiples of the stride: those that hold data.  Each read is
    # as likely to need any part of the tables as any other.
    return iops("randread", 4096, 16, size, seconds=seconds or config.seconds,
                blockalign=images.spots_stride(config, size))


def first_second(config, size, cluster, disk):
    """No table is in the server's memory when it begins."""
    return Row("random read 4K, %s, clusters of %s, the first second"
               % (size_name(size), size_name(cluster)), "IOPS",
               load(disk, spots_client(config, size, 1), warm=False, writes=False),
               goals=goals(0.95), often=often(config))


def large(config):
    """Allocated from end to end, with data at some 32,768 spots (--quick:
    8,192), which are read at random, with the default cache: reads go all over the
    tables, and all of the data is in memory."""
    groups = []
    cells = [(TiB, 65536)] if config.quick else [
        (size, cluster) for size in (100 * GiB, TiB)
        for cluster in (65536, 262144, MiB, 2 * MiB)]
    for size, cluster in cells:
        disk = pair(config.path("spots.raw"), config.path("spots.qcow2"))
        rows = [Row("random read 4K, %s, clusters of %s"
                    % (size_name(size), size_name(cluster)), "IOPS",
                    load(disk, spots_client(config, size), warm=False, writes=False),
                    goals=goals(0.95),
                    curve=("5-random read 4K, disk of %s" % size_name(size),
                           "cluster size", cluster))]
        if (size, cluster) == (TiB, 65536) and not config.quick:
            rows.append(first_second(config, size, cluster, disk))
        groups.append(spots_group(config, size, cluster, rows))
    return groups


def memory(config):
    """Peak memory with the default cache, after random reads all over a full disk.  (The
    table shows it for all rows; here it is compared.)"""
    groups = []
    for size in (GiB,) if config.quick else (GiB, 10 * GiB, 100 * GiB, TiB):
        speed = Row("random read 4K, disk of %s" % size_name(size), "IOPS",
                    load(pair(config.path("spots.raw"), config.path("spots.qcow2")),
                         spots_client(config, size), warm=False, writes=False))
        rss = Row("peak RSS, disk of %s" % size_name(size), "MiB", rss_of=speed,
                  better=LESS, curve=("10-peak RSS", "disk size", size))
        groups.append(spots_group(config, size, 65536, [speed, rss]))
    return groups


# --- 6: chains

def chains(config):
    """The disk's clusters are dealt out to the layers in turn, so that neighbours never
    live in the same layer.  The limit is one raw file, whatever the length."""
    size = max(config.size // 4, MiB)
    depths = (1, 100) if config.quick else (1, 10, 100, 300, 1000)
    raw = config.path("chain.raw")
    rows = []
    first = {}

    def add(name, depth, row):
        row.name = "%s, %d layer%s" % (name, depth, "" if depth == 1 else "s")
        row.curve = ("6-" + name, "layers", depth)
        if depth == 1:
            first[name] = row
        elif depth >= 300 and name in ("random read 4K, depth 16", "peak RSS"):
            row.against = first[name]
            row.against_goal = 0.95 if name.startswith("random") else 1 / 1.5
        rows.append(row)

    for depth in depths:
        top = config.path("chain%d.qcow2" % depth)
        disk = pair(raw, top)

        def fresh(kind, top=top):
            # In the same directory: it names its backing file.
            return raw if kind == LIMIT else images.fresh_copy(top, top + ".fresh")

        add("random read 4K, depth 16", depth, Row(
            "", "IOPS", load(disk, iops("randread", 4096, 16, size,
                                        seconds=config.seconds)),
            goals=goals(0.95, 40 if depth == 300 else None)))
        whole = Row("", "MiB/s", load(disk, copy(size)))
        add("nbdcopy of the whole disk", depth, whole)
        if depth > 1 or not config.quick:
            add("time to the first read", depth, Row(
                "", "s", start(disk, clients.first_read()), better=LESS))
        add("peak RSS", depth, Row("", "MiB", rss_of=whole, better=LESS))
        if not config.quick:
            for block in (4096, 65536):
                # The smaller ones copy the rest of each cluster, 60K, from a layer below;
                # so the larger ones show what all of that costs but the copying.
                add("random write %s, depth 16" % size_name(block), depth, Row(
                    "", "IOPS", load(fresh, iops("randwrite", block, 16, size,
                                                 ios=max(size // 65536, 1)), warm=False)))

    def prepare(config):
        images.beginning(config.pool, raw, size)
        for depth in depths:
            if any(row.curve[2] == depth for row in group.rows):
                images.chain(config, raw, config.path("chain%d.qcow2" % depth), depth)

    # Each layer has tables of its own: half a MiB in all.
    disk = (len(depths) + 3) * size + sum(depths) * MiB // 2
    group = Group("chains, a disk of %s" % size_name(size), rows, prepare, disk)
    return [group] + flattening(config)


def flatten_row(config, raw, top, depth):
    """Copies all layers into the top image: seconds, against qemu-img rebase.  The limit:
    cp of the raw disk."""
    fresh = top + ".fresh"

    def argv(kind):
        if kind == LIMIT:
            return ["cp", "--sparse=never", raw, raw + ".copy"]
        if kind == QEMU:
            return ["qemu-img", "rebase", "-f", "qcow2", "-b", "", fresh]
        return [config.nbdkit, "-U", "-", config.plugin, "file=" + fresh,
                "flatten=true", "--run", "true"]

    return Row("flatten %d layers" % depth, "s",
               commands(argv, lambda kind: images.fresh_copy(top, fresh)), better=LESS,
               curve=("6-flatten", "layers", depth))


def flattening(config):
    size = max(config.size // 4, MiB)
    depth = 100 if config.quick else 300
    raw, top = config.path("flat.raw"), config.path("flat.qcow2")

    def prepare(config):
        images.beginning(config.pool, raw, size)
        images.chain(config, raw, top, depth)

    rows = [flatten_row(config, raw, top, depth)]
    config.need(rows, "flatten")
    return [Group("flattening, a disk of %s" % size_name(size), rows, prepare,
                  5 * size + depth * MiB // 2)]


# --- 7 and 8: more than copying

def three(config, disk, size, settings=None, wanted=None, prefix=""):
    """64K and 4K in order, 4K at random."""
    rows = []
    for name, rw, bs in (("64K sequential", "read", 65536),
                         ("4K sequential", "read", 4096),
                         ("4K random", "randread", 4096)):
        if config.quick and name == "4K sequential":
            continue
        measure, unit = (bandwidth, "MiB/s") if rw == "read" else (iops, "IOPS")
        rows.append(Row(
            "%sread %s, depth 4" % (prefix, name), unit,
            load(disk, measure(rw, bs, 4, size, seconds=config.seconds), settings),
            goals=(wanted or {}).get(name, {})))
    return rows


def one_at_a_time(config, disk, size, kind, cluster):
    """A client that waits for each answer: idle processors may work ahead of it."""
    return Row("%s, clusters of %s, read 64K sequential, depth 1"
               % (kind, size_name(cluster)), "MiB/s",
               load(disk, bandwidth("read", 65536, 1, size, seconds=config.seconds)),
               goals=goals(qemu=2))


def compressed(config):
    size = max(config.size // 4, MiB)
    wanted = {"4K sequential": goals(qemu=10), "64K sequential": goals(qemu=2),
              "4K random": goals(qemu=2)}
    raw, image = config.path("text.raw"), config.path("text.qcow2")
    disk = pair(raw, image)

    def group(kind, cluster):
        rows = [one_at_a_time(config, disk, size, kind, cluster)]
        if cluster == 65536:
            # (Of larger ones, QEMU decompresses too much for each request.)
            rows = three(config, disk, size, wanted=wanted, prefix=kind + ", ") + rows
        config.need(rows, kind)

        def prepare(config):
            images.text_raw(raw, size)
            images.in_order(raw, image, cluster, kind)

        return Group("text compressed by %s, clusters of %s, a disk of %s"
                     % (kind, size_name(cluster), size_name(size)), rows, prepare,
                     2 * size)

    groups = [group(kind, cluster) for kind in ("zlib", "zstd")
              for cluster in (65536, MiB)]
    return groups[:1] if config.quick else groups


def encrypted(config):
    """AES-256-XTS, QEMU's default.  The limit has nothing to decipher; what the cipher
    alone does stands in the description of the machine (openssl speed)."""
    size = max(config.size // 4, MiB)
    raw, image = config.path("plain.raw"), config.path("luks.qcow2")
    secret = config.path("secret")
    disk, settings = pair(raw, image), {"secret": secret}
    rows = three(config, disk, size, settings,
                 {name: goals(qemu=2) for name in (
                     "64K sequential", "4K sequential", "4K random")}, "LUKS, ")
    if not config.quick:
        rows.append(Row(
            "LUKS, rewrite 1M sequential, depth 4", "MiB/s",
            load(disk, bandwidth("write", MiB, 4, size, seconds=config.seconds),
                 settings, rewrites=True),
            goals=goals(qemu=2)))
    config.need(rows, "luks")

    def prepare(config):
        images.beginning(config.pool, raw, size)
        images.luks(raw, image, secret)

    return [Group("LUKS, a disk of %s" % size_name(size), rows, prepare, 2 * size)]


# --- 9: storms

def storms(config):
    """Trims and zeroes of 64K, with other requests at the same time.  What is not
    measured has a fixed rate, so that all servers have the same to do beside.  Each
    server has a copy of its own, where flat out a fresh one: trimmed once, there is
    nothing left to trim."""
    size = max(config.size // 8, MiB)
    seconds = config.seconds
    raw, image = config.path("storm.raw"), config.path("storm.qcow2")

    def own(kind):
        path = config.path("storm." + kind)
        if not os.path.exists(path):
            images.fresh_copy(raw if kind == LIMIT else image, path)
        return path

    def fresh(kind):
        return images.fresh_copy(raw if kind == LIMIT else image,
                                 config.path("fresh." + kind))

    def beside(rw, bs, rate, seconds):
        # rate_iops has a value each for reads, writes, trims.
        return job(rw, bs, 1, size, seconds=seconds, rate_iops="%d,%d,%d" % ((rate,) * 3))

    rows = [
        Row("random write 4K, depth 16, during 500 trims/s", "IOPS",
            load(own, iops("randwrite", 4096, 16, size, seconds=seconds,
                           companion=beside("randtrim", 65536, 500, seconds)),
                 warm=False)),
        Row("random read 4K, depth 16, during 500 zeroes/s", "IOPS",
            load(own, clients.during_zeroes(
                iops("randread", 4096, 16, size, seconds=seconds), 65536, 500, seconds),
                 warm=False)),
        Row("trim then write each 64K, depth 16", "IOPS",
            load(own, iops("trimwrite", 65536, 16, size, seconds=seconds), warm=False)),
        Row("trim 64K at random, depth 16, during 1000 reads/s", "IOPS",
            load(fresh, iops("randtrim", 65536, 16, size, ios=max(size // 65536, 1),
                             companion=beside("randread", 4096, 1000, 0.5)), warm=False)),
        Row("zero 64K at random, depth 16", "IOPS",
            load(fresh, clients.zeroes(65536, 16), warm=False)),
    ]

    def prepare(config):
        images.beginning(config.pool, raw, size)
        images.in_order(raw, image)

    return [Group("storms, a disk of %s" % size_name(size),
                  rows[:1] if config.quick else rows, prepare, 8 * size)]


# --- 11: over a link

def link(config):
    """Images that come from an NBD server which answers late (see servers.py)."""
    return [group(config, delay) for group in (far_disk, far_empty, far_chain)
            for delay in ((0, 1) if config.quick else (0, 1, 10))]


def delayed(delay):
    return "%g ms" % delay, {"far_delay": delay}


def far_disk(config, delay):
    """A full disk."""
    size = max(config.size // 4, MiB)
    raw, image = config.path("far.raw"), config.path("far.qcow2")
    disk = pair(raw, image)
    name, settings = delayed(delay)
    rows = []

    def row(text, unit, client):
        rows.append(Row("%s, %s" % (text, name), unit, load(disk, client, settings),
                        goals=goals(0.95, 2)))

    for depth in (DEPTH,) if config.quick else (1, DEPTH):
        for text, rw in (("random read", "randread"), ("random rewrite", "randwrite")):
            row("%s 4K, depth %d" % (text, depth), "IOPS",
                iops(rw, 4096, depth, size, seconds=config.seconds))
    row("random rewrite 4K, flush after each", "IOPS",
        iops("randwrite", 4096, 1, size, seconds=config.seconds, fsync=1))
    if not config.quick:
        row("sequential read 64K, depth 4", "MiB/s",
            bandwidth("read", 65536, 4, size, seconds=config.seconds))
    row("nbdcopy of the whole disk", "MiB/s", copy(size))

    def prepare(config):
        images.beginning(config.pool, raw, size)
        images.in_order(raw, image)

    return Group("a far disk of %s" % size_name(size), rows, prepare, 3 * size)


def far_empty(config, delay):
    """Allocating writes.  The far file has space for them: an export does not grow."""
    size = max(config.size // 4, MiB)
    name, settings = delayed(delay)

    def fresh(kind):
        path = config.path("empty." + kind)
        if kind == LIMIT:
            images.empty_raw(path, size)
        else:
            images.empty_qcow2(path, size)
            os.truncate(path, size + size // 8 + 16 * MiB)
        return path

    def row(text, client):
        return Row("%s, %s" % (text, name), "IOPS",
                   load(fresh, client, settings, warm=False), goals=goals(0.95, 2))

    n = max(size // 65536 // 2, 1)
    rows = [row("random write 4K, depth %d, empty image" % DEPTH,
                iops("randwrite", 4096, DEPTH, size, ios=n)),
            row("random write 4K, flush after each, empty image",
                iops("randwrite", 4096, 1, size, ios=min(n, 512), fsync=1))]
    return Group("a far empty disk of %s" % size_name(size), rows, disk=3 * size)


def far_chain(config, delay):
    """All layers are far."""
    depth = 30 if config.quick else 300
    size = max(config.size // 8, MiB)
    raw, top = config.path("chain.raw"), config.path("chain.qcow2")
    name, settings = delayed(delay)
    settings["far_chain"] = True
    disk = pair(raw, top)
    rows = [
        Row("random read 4K, depth %d, %d layers, %s" % (DEPTH, depth, name), "IOPS",
            load(disk, iops("randread", 4096, DEPTH, size, seconds=config.seconds),
                 settings), goals=goals(0.95, 2)),
        Row("nbdcopy of the whole disk, %d layers, %s" % (depth, name), "MiB/s",
            load(disk, copy(size), settings), goals=goals(0.95, 2)),
        Row("time to the first read, %d layers, %s" % (depth, name), "s",
            start(disk, clients.first_read(), settings), better=LESS,
            goals=goals(qemu=2)),
    ]

    def prepare(config):
        images.beginning(config.pool, raw, size)
        images.chain(config, raw, top, depth,
                     named=lambda path: far_uri(config, os.path.basename(path)))

    return Group("a far chain, a disk of %s" % size_name(size), rows, prepare,
                 3 * size + depth * MiB // 2)


# --- 12: commands

def nbdkit_img(config):
    return os.path.join(os.path.dirname(config.plugin), "../../img/nbdkit-qcow2-img")


def command_row(config, name, *words, fresh=()):
    """Seconds that the same arguments take qemu-img and nbdkit-qcow2-img.  What they make
    is config.path("made").  FRESH: (file, what it is a copy of), of files they change."""
    def before(kind):
        if os.path.exists(config.path("made")):
            os.unlink(config.path("made"))
        for path, original in fresh:
            images.fresh_copy(original, path)

    def argv(kind):
        return ["qemu-img" if kind == QEMU else nbdkit_img(config), *words]

    return Row(name, "s", commands(argv, before), better=LESS, kinds=(QEMU, PLUGIN),
               goals=goals(qemu=1), often=often(config))


def tools(config):
    size = max(config.size // 4, MiB)
    return [conversion(config, size), compressing(config, size), layered(config, size),
            *([] if config.quick else [metadata(config, size)])]


def conversion(config, size):
    raw, disk, made = config.path("disk.raw"), config.path("disk.qcow2"), \
        config.path("made")

    def prepare(config):
        images.beginning(config.pool, raw, size)
        images.in_order(raw, disk)

    rows = [command_row(config, "convert raw to qcow2", "convert", "-f", "raw", "-O",
                        "qcow2", raw, made),
            command_row(config, "convert qcow2 to raw", "convert", "-O", "raw", disk,
                        made),
            command_row(config, "compare", "compare", "-f", "raw", raw, disk),
            command_row(config, "info", "info", disk),
            command_row(config, "create", "create", "-q", "-f", "qcow2", made, "10G")]
    return Group("convert, a full disk of %s" % size_name(size), rows, prepare, 3 * size)


def compressing(config, size):
    raw, made = config.path("text.raw"), config.path("made")
    rows = []
    for kind in ("zlib", "zstd"):
        row = command_row(config, "convert -c, " + kind, "convert", "-f", "raw", "-c",
                          "-O", "qcow2", "-o", "compression_type=" + kind, raw, made)
        config.need([row], kind)
        rows.append(row)
    return Group("convert -c, %s of text" % size_name(size), rows,
                 lambda c: images.text_raw(raw, size), 3 * size)


def layered(config, size):
    depth = 4 if config.quick else 30
    raw, top = config.path("chain.raw"), config.path("chain.qcow2")
    fresh, made = config.path("fresh.qcow2"), config.path("made")
    below, half = ("%s.%d" % (top, n) for n in (depth - 2, depth // 2 - 1))

    def prepare(config):
        images.beginning(config.pool, raw, size)
        images.chain(config, raw, top, depth)
        images.fresh_copy(below, below + ".kept")

    rows = [command_row(config, "convert %d layers to one" % depth, "convert", "-O",
                        "qcow2", top, made),
            command_row(config, "map %d layers" % depth, "map", "--output=json", top),
            command_row(config, "rebase %d layers over half of them" % depth, "rebase",
                        "-b", half, "-F", "qcow2", fresh, fresh=[(fresh, top)]),
            command_row(config, "commit the top layer", "commit", "-q", fresh,
                        fresh=[(fresh, top), (below, below + ".kept")])]
    return Group("%d layers, a disk of %s" % (depth, size_name(size)), rows, prepare,
                 5 * size + depth * MiB // 2)


def metadata(config, size):
    """As many L2 entries as a disk 16 times as large has."""
    disk = config.path("disk.qcow2")

    def prepare(config):
        images.shuffled(config, config.pool, disk, 4096)

    return Group("small clusters in random order, a disk of %s" % size_name(config.size),
                 [command_row(config, "check", "check", disk),
                  command_row(config, "map", "map", disk)], prepare, 2 * config.size)


# --- 13: copies

def copies(config):
    """Whole disks, by nbdcopy through each server; and the same, from the start of the
    servers to their end, against qemu-img convert."""
    groups = [copied(config, part) for part in ("full", "sparse")]
    return groups[:1] if config.quick else groups


def copied(config, part):
    size = max(config.size // 4, MiB)
    raw, image = config.path("from.raw"), config.path("from.qcow2")
    source = pair(raw, image)

    def made(kind):
        return config.path("made.raw" if kind == LIMIT else "made.qcow2")

    def gone():
        for kind in (LIMIT, PLUGIN):
            if os.path.exists(made(kind)):
                os.unlink(made(kind))

    def empty(kind):
        gone()
        if kind == LIMIT:
            images.empty_raw(made(kind), size)
        else:
            images.empty_qcow2(made(kind), size)
        return made(kind)

    def from_source(kind):
        gone()
        return source[kind]

    def row(text, sample):
        return Row("%s, %s" % (text, part), "MiB/s", sample, goals=goals(0.95, 1),
                   often=often(config))

    def convert(text, *words):
        def argv(kind):
            if kind == QEMU:
                return ["qemu-img", "convert", *words]
            return [nbdkit_img(config), "convert", *words]
        return Row("%s, %s" % (text, part), "s", commands(argv, lambda kind: gone()),
                   better=LESS, kinds=(QEMU, PLUGIN), goals=goals(qemu=1),
                   often=often(config))

    out, new = config.path("made.raw"), config.path("made.qcow2")
    rows = [
        row("nbdcopy of the disk to a raw file",
            load(from_source, clients.copy_to_file(size, out), writes=True)),
        row("nbdcopy of a raw file to an empty image",
            load(empty, clients.copy_from_file(size, raw), warm=False)),
        row("nbdcopy of the disk to an empty image",
            load(source, clients.copy_to_server(size, empty), writes=True)),
        convert("convert qcow2 to raw", "-f", "qcow2", "-O", "raw", image, out),
        convert("convert raw to qcow2", "-f", "raw", "-O", "qcow2", raw, new),
        convert("convert qcow2 to qcow2", "-f", "qcow2", "-O", "qcow2", image, new),
    ]

    def prepare(config):
        images.beginning(config.pool, raw, size)
        if part == "sparse":
            images.thin_out(raw)
        images.in_order(raw, image)

    return Group("copies of a %s disk of %s" % (part, size_name(size)), rows, prepare,
                 4 * size)


# --- 15: bitmaps that survive a crash

def durable(config):
    """Each sample writes all of a full disk once, whose bitmap is empty: so the log marks
    each region.  Without bitmap-durable, beside it, the bitmap is in use meanwhile."""
    size = config.size
    raw, image = config.path("disk.raw"), config.path("disk.qcow2")
    rows = []

    def fresh(kind):
        return images.fresh_copy(raw if kind == LIMIT else image,
                                 config.path("fresh." + kind))

    for name, rw in (("random", "randwrite"), ("sequential", "write")):
        for flushes in (0, 32):
            client = iops(rw, 65536, 16, size, ios=max(size // 65536, 1),
                          **({"fsync": flushes} if flushes else {}))
            title = "%s write 64K, depth 16%s" % (
                name, ", flush after each %d" % flushes if flushes else "")
            off = Row(title, "IOPS", load(fresh, client, warm=False),
                      often=often(config))
            rows += [off, Row(title + ", durable", "IOPS",
                              load(fresh, client, {"durable": True}, warm=False),
                              kinds=(PLUGIN,), against=off, against_goal=0.9,
                              often=often(config))]

    def prepare(config):
        images.beginning(config.pool, raw, size)
        images.in_order(raw, image)
        images.run("qemu-img", "bitmap", "--add", image, "b")

    return [Group("a disk of %s with a bitmap" % size_name(size), rows, prepare, 5 * size)]


CASES = {
    1: ("reads", reads),
    2: ("rewrites", rewrites),
    3: ("writes into an empty image", allocation),
    4: ("reads with a limited cache", caches),
    5: ("large disks", large),
    6: ("chains", chains),
    7: ("compressed", compressed),
    8: ("encrypted", encrypted),
    9: ("trim and zero storms", storms),
    10: ("memory", memory),
    11: ("over a link", link),
    12: ("commands", tools),
    13: ("copies", copies),
    14: ("live", live),
    15: ("durable bitmaps", durable),
}
