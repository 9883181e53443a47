# SPDX-License-Identifier: BSD-3-Clause
"""The disks that are served: raw files, and the same bytes as qcow2.

All qcow2 images are made by QEMU's tools, so that no server gets one to its own taste.
What is read later has been written, with bytes that don't compress (or with text where
compression is measured): a hole of the host's file would be answered without reading.
"""

import array
import json
import os
import random
import shutil
import struct
import subprocess

import nbd

from servers import QEMU, Server

MiB = 1 << 20
GiB = 1 << 30
TiB = 1 << 40


def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError("%s: %s" % (argv[0], done.stderr.strip()[-300:]))


# --- raw

def random_raw(path, size):
    with open(path, "wb") as f:
        for offset in range(0, size, MiB):
            f.write(os.urandom(min(MiB, size - offset)))


def text_raw(path, size):
    """Something like prose: words, frequent ones more often; zlib halves it or better."""
    r = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(r.choices(letters, k=r.randint(2, 10))) for _ in range(5000)]
    weights = [1 / (i + 10) for i in range(len(words))]
    block = b""
    while len(block) < min(size, 8 * MiB):
        block += " ".join(r.choices(words, weights, k=100000)).encode() + b"\n"
    with open(path, "wb") as f:
        left, n = size, 0
        while left > 0:
            # Each time with another beginning, so that no two clusters are the same.
            piece = (b"%d " % n + block)[:left]
            f.write(piece)
            left -= len(piece)
            n += 1


def empty_raw(path, size):
    with open(path, "wb") as f:
        f.truncate(size)


def touch_memory(path, size):
    """Has the host give memory to a virtual machine.  What was freed there for some seconds
    may belong to the host again, and then a write that fills the page cache takes five
    times as long, whoever writes."""
    with open(path, "wb") as f:
        for _ in range(size // MiB):
            f.write(bytes(MiB))
    os.unlink(path)


def beginning(raw, path, size):
    """The first bytes of a raw file, as a file of its own."""
    with open(raw, "rb") as old, open(path, "wb") as new:
        left = size
        while left > 0:
            piece = old.read(min(MiB, left))
            new.write(piece)
            left -= len(piece)


def thin_out(path):
    """Makes holes in a raw file: a sixth of it is left, in pieces of 1M."""
    size = os.path.getsize(path)
    for offset in range(0, size - MiB, 6 * MiB):
        run("fallocate", "--punch-hole", "--offset", str(offset + MiB),
            "--length", str(min(5 * MiB, size - offset - MiB)), path)


def fresh_copy(path, copy):
    if os.path.exists(copy):
        os.unlink(copy)
    run("cp", "--sparse=auto", path, copy)
    return copy


# --- qcow2

def empty_qcow2(path, size, cluster=65536, **options):
    options["cluster_size"] = cluster
    if os.path.exists(path):
        os.unlink(path)
    run("qemu-img", "create", "-q", "-f", "qcow2",
        "-o", ",".join("%s=%s" % option for option in options.items()), path, str(size))


def in_order(raw, path, cluster=65536, compression=None):
    """The clusters lie in the file as they do on the disk."""
    argv = ["qemu-img", "convert", "-f", "raw", "-O", "qcow2"]
    options = "cluster_size=%d" % cluster
    if compression:
        argv += ["-c"]
        options += ",compression_type=" + compression
    run(*argv, "-o", options, raw, path)


def write_pieces(config, image, raw, pieces):
    """Writes pieces (offset, length) of a raw file to an image, nearly in this order."""
    failed = []

    def done(error):
        if error.value:
            failed.append(error.value)
        return 1

    with Server(config, QEMU, image) as server, open(raw, "rb") as f:
        h = nbd.NBD()
        h.connect_uri(server.uri)
        for offset, length in pieces:
            f.seek(offset)
            while h.aio_in_flight() >= 8:
                h.poll(-1)
            h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(f.read(length))), offset,
                         completion=done)
        while h.aio_in_flight():
            h.poll(-1)
        if failed:
            raise OSError(failed[0], os.strerror(failed[0]), image)
        h.flush()
        h.shutdown()


def shuffled(config, raw, path, cluster=65536):
    """The clusters lie in the file in an order that has nothing to do with the disk's:
    they were written in random order."""
    size = os.path.getsize(raw)
    empty_qcow2(path, size, cluster)
    pieces = [(offset, min(cluster, size - offset)) for offset in range(0, size, cluster)]
    random.Random(1).shuffle(pieces)
    write_pieces(config, path, raw, pieces)


# --- large disks

def spots_stride(config, size):
    """How far apart the spots of a large disk are: 32,768 at most (--quick: 8,192)."""
    stride = 65536
    while stride * (8192 if config.quick else 32768) < size:
        stride *= 2
    return stride


def spots_raw(config, path, size):
    """A sparse raw disk with 4K of data at every stride."""
    empty_raw(path, size)
    with open(path, "r+b") as f:
        for offset in range(0, size, spots_stride(config, size)):
            f.seek(offset)
            f.write(os.urandom(4096))


def spots_qcow2(config, raw, path, cluster, mixed=False):
    """The same as qcow2.  All clusters are allocated, so that the tables are those of
    a full disk; what will be read is written.  mixed: see mix."""
    size = os.path.getsize(raw)
    empty_qcow2(path, size, cluster, preallocation="metadata")
    if mixed:
        mix(path)
    write_pieces(config, path, raw,
                 [(offset, 4096)
                  for offset in range(0, size, spots_stride(config, size))])


def mix(path):
    """In an image all clusters of which are allocated, and empty, these trade places, as
    if they had been written in random order.  (Only L2 entries do: each cluster is still
    used once.)"""
    with open(path, "r+b") as f:
        header = f.read(48)
        cluster_bits, size = struct.unpack(">IQ", header[20:32])
        l1_size, l1_offset = struct.unpack(">4xIQ", header[32:48])
        f.seek(l1_offset)
        tables = [entry & 0x00fffffffffffe00
                  for entry in struct.unpack(">%dQ" % l1_size, f.read(8 * l1_size))]
        entries = array.array("Q")
        for table in tables:
            f.seek(table)
            entries.frombytes(f.read(1 << cluster_bits))
        used = entries[:-(-size >> cluster_bits)]
        random.Random(1).shuffle(used)
        entries[:len(used)] = used
        data = entries.tobytes()
        for i, table in enumerate(tables):
            f.seek(table)
            f.write(data[i << cluster_bits:(i + 1) << cluster_bits])


# --- chains

def chain(config, raw, path, layers, cluster=65536, named=os.path.basename):
    """A chain of so many images; the clusters of the disk are dealt out to them in turn.
    path: the top one; the others have its name and a number.
    named: what a header calls the file below, from its path."""
    size = os.path.getsize(raw)
    names = ["%s.%d" % (path, i) for i in range(layers - 1)] + [path]
    for i, name in enumerate(names):
        options = {}
        if i > 0:
            options = {"backing_file": named(names[i - 1]),
                       "backing_fmt": "qcow2"}
        argv = ["cluster_size=%d" % cluster] + ["%s=%s" % o for o in options.items()]
        # -u and a backing of null: no need to open all layers to write whole clusters
        # to this one.
        run("qemu-img", "create", "-q", "-u", "-f", "qcow2", "-o", ",".join(argv),
            name, str(size))
        alone = "json:" + json.dumps({
            "driver": "qcow2", "backing": None,
            "file": {"driver": "file", "filename": name}})
        write_pieces(config, alone, raw,
                     [(offset, min(cluster, size - offset))
                      for offset in range(i * cluster, size, layers * cluster)])


# --- encryption

def luks(raw, path, secret):
    with open(secret, "w") as f:
        f.write("correct horse battery staple")
    os.chmod(secret, 0o600)
    size = os.path.getsize(raw)
    for attempt in range(20):
        try:
            if os.path.exists(path):
                os.unlink(path)
            # iter-time: opening is not what is measured.
            run("qemu-img", "create", "-q", "-f", "qcow2",
                "--object", "secret,id=s,file=" + secret,
                "-o", "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
                path, str(size))
            break
        except OSError:
            # On a busy machine it fails now and then, with a complaint about CPU usage.
            if attempt == 19:
                raise
    run("qemu-img", "convert", "-n", "-f", "raw", "--object",
        "secret,id=s,file=" + secret, "--target-image-opts", raw,
        "driver=qcow2,encrypt.key-secret=s,file.filename=" + path)


def remove(directory):
    shutil.rmtree(directory, ignore_errors=True)
