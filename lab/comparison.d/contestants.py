# SPDX-License-Identifier: BSD-3-Clause
"""Who takes part: servers of several systems, and programs that use a library.

A system is this machine, or a chroot.  Each server gets what its manual says is fast:

qemu-nbd               -e 16 (connections), and --aio for all files of a chain
qemu-storage-daemon    an iothread, which serves the export and its block nodes; aio= for
                       each file of a chain.  (That of Debian 12 dies when a client leaves
                       an iothread, so it is measured without.)
nbdkit                 its defaults: 16 threads for each connection (but see --threads)

QEMU's page cache is that of the host (cache=writeback, its default), as nbdkit's.
"""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import time
from dataclasses import dataclass, field

import nbd

import servers

PLUGIN = "plugin"
CORE = "plugin's core"
AIO = ("threads", "io_uring")

# What a row may ask for; and the names of compression types.
WRITES, BACKING = "writes", "backing"
COMPRESSIONS = ("zlib", "zstd")


class System:
    """Programs of one release of Debian."""

    def __init__(self, name, root=None, environment=()):
        self.name, self.root, self.environment = name, root, environment

    def argv(self, *words):
        # (Each program replaces the one before: the process keeps its number.)
        if not self.root:
            return list(words)
        return ["env", "-i", *self.environment, "chroot", self.root, *words]

    def version(self, program):
        """Such as 7.2, or None if it is not there."""
        try:
            done = subprocess.run(self.argv(program, "--version"), capture_output=True,
                                  text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r"\b(\d+\.\d+)(\.\d+)?\b", done.stdout)
        return found.group(1) if found and done.returncode == 0 else None


@dataclass
class Contestant:
    name: str
    # Those of one heat are measured in turn.
    heat: str
    # command (files, socket): the words that start it.  files: the layers of a disk, the
    # lowest first.
    command: object = None
    # It does not know qcow2, and gets the raw disk.
    raw: bool = False
    # What it cannot do: by what a row asks for, the reason.
    cannot: dict = field(default_factory=dict)
    # Why it does not take part.
    missing: str = None
    # What it is if it does not work as it is.
    otherwise: object = None


# --- NBD servers

def chained(files, aio):
    """The layers of a disk as QEMU's options, the top one outermost."""
    node = None
    for path in files:
        above = {"driver": "qcow2", "discard": "unmap",
                 "file": {"driver": "file", "filename": path, "aio": aio,
                          "discard": "unmap"}}
        # (The lowest has none.)
        above["backing"] = node
        node = above
    return node


def qemu_nbd(system, aio):
    def command(files, sock):
        image = "json:" + json.dumps(chained(files, aio))
        return system.argv("qemu-nbd", "-t", "-k", sock, "-e", "16", "--discard=unmap",
                           "--cache=writeback", "--aio=" + aio, image)
    return command


def storage_daemon(system, aio, iothread=True):
    def command(files, sock):
        node = dict(chained(files, aio), **{"node-name": "disk"})
        export = {"type": "nbd", "id": "export", "node-name": "disk", "name": "",
                  "writable": True}
        if iothread:
            export["iothread"] = "thread"
        return system.argv(
            "qemu-storage-daemon", "--object", "iothread,id=thread",
            "--blockdev", json.dumps(node),
            "--nbd-server", "addr.type=unix,addr.path=" + sock,
            "--export", json.dumps(export))
    return command


def nbdkit(config, system, program, *words):
    threads = ["-t", str(config.threads)] if config.threads else []

    def command(files, sock):
        return system.argv(program, "-f", "-U", sock, *threads, *words,
                           "file=" + files[-1])
    return command


def of_qemu(system):
    def one(program, aio, make):
        version = system.version(program)
        return Contestant(
            "%s %s %s" % (program, version or "of " + system.name, aio), system.name,
            make(system, aio),
            missing=None if version else "%s has no %s" % (system.name, program))

    for aio in AIO:
        yield one("qemu-nbd", aio, qemu_nbd)
    for aio in AIO:
        daemon = one("qemu-storage-daemon", aio, storage_daemon)
        daemon.otherwise = dataclasses.replace(
            daemon, name=daemon.name + ", no iothread",
            command=storage_daemon(system, aio, iothread=False))
        yield daemon


def of_newest_nbdkit(config, system):
    """Its filter, which Debian 12 does not have, and the plugin in the same nbdkit."""
    version = system.version("nbdkit")
    name = "nbdkit %s " % (version or "of " + system.name)
    missing = None if version else "%s has no nbdkit" % system.name
    if not system.root:
        yield Contestant(name + "qcow2dec", system.name,
                         missing="only the newest system's is measured")
        return
    yield Contestant(name + "qcow2dec", system.name,
                     nbdkit(config, system, "nbdkit", "--filter=qcow2dec", "file"),
                     cannot={WRITES: "it only reads",
                             BACKING: "it reads no backing file"},
                     missing=missing)
    yield Contestant(name + "plugin", system.name,
                     nbdkit(config, system, "nbdkit", config.plugin), missing=missing)


def of_nbd(config):
    """The first one is the plugin."""
    here = System("here")
    yield Contestant(PLUGIN, "", nbdkit(config, here, config.nbdkit, config.plugin))
    yield Contestant("nbdkit %s file" % here.version(config.nbdkit), "nbdkit",
                     nbdkit(config, here, config.nbdkit, "file"), raw=True,
                     cannot=dict.fromkeys(COMPRESSIONS, "its file is not compressed"))
    for system in config.systems:
        if isinstance(system, System):
            yield from of_qemu(system)
        else:
            name, why = system
            for program in ("qemu-nbd", "qemu-storage-daemon"):
                for aio in AIO:
                    yield Contestant("%s of %s %s" % (program, name, aio), name,
                                     missing=why)
    newest = config.systems[-1]
    if isinstance(newest, System):
        yield from of_newest_nbdkit(config, newest)
    else:
        yield Contestant("nbdkit of %s qcow2dec" % newest[0], newest[0],
                         missing=newest[1])


class Server(servers.Server):
    """A contestant that serves a disk, for the length of a `with' block."""

    def __init__(self, config, contestant, files):
        self.config = config
        self.name = contestant.name
        self.sock = os.path.join(config.sockets, "sock")
        self.uri = "nbd+unix:///?socket=" + self.sock
        self.argv = contestant.command(files, self.sock)
        self.far = None
        self.files = servers.limit_files
        self.wait = True


@contextlib.contextmanager
def connected(uri):
    """A server waits for its clients before it ends, whatever these found."""
    h = nbd.NBD()
    h.connect_uri(uri)
    try:
        yield h
    finally:
        h.shutdown()


def that_works(config, contestant, files):
    """Clients come and go.  What does not survive that takes no part, or in another
    way."""
    if contestant.missing:
        return contestant
    try:
        with Server(config, contestant, files) as server:
            for _ in range(5):
                with connected(server.uri) as h:
                    h.pread(4096, 0)
            # (What it dies of may need a moment.)
            time.sleep(0.05)
            server.check_alive()
        return contestant
    except (servers.ServerError, nbd.Error) as e:
        if contestant.otherwise:
            return that_works(config, contestant.otherwise, files)
        return dataclasses.replace(contestant, missing=str(e))


# --- programs that use a library

def of_libraries(config):
    """The first one is the plugin's core."""
    def missing_of(program):
        if not config.drivers:
            return "--no-libraries leaves it out"
        path = os.path.join(config.drivers, program + ".missing")
        if not os.path.exists(path):
            return None
        with open(path, encoding="utf-8") as f:
            return f.read().strip()

    def one(name, path, missing, **cannot):
        if not missing and not os.access(path, os.X_OK):
            missing = "there is no program '%s'" % path
        return Contestant(name, "process", lambda files, _: [path, files[-1]],
                          cannot=cannot, missing=missing)

    rust = os.path.join(config.drivers, "rust", "release", "comparison-")
    go = os.path.join(config.drivers, "go", "")
    yield one(CORE, config.core, None if config.core else "--core does not name it")
    yield one("imago", rust + "imago", missing_of("rust"))
    yield one("qcow2-rs", rust + "qcow2-rs", missing_of("rust"))
    yield one("go-qcow2reader", go + "reader", missing_of("go-reader"),
              **{WRITES: "it only reads"})
    yield one("go-qcow2", go + "qcow2", missing_of("go-qcow2"))
