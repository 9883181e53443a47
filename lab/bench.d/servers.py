# SPDX-License-Identifier: BSD-3-Clause
"""The servers that are compared: how each is started, watched and stopped.

qemu-nbd's settings are the best that we know for it:
  -e 16           as many connections as a client likes; the default of 1 would make
                  the samples with 4 jobs fail
  --discard=unmap so that trim does the same work as elsewhere
  --cache         writeback, its default, with a warm page cache; none for --cold
  --aio           whichever is fastest on this machine, measured at the start (best_aio):
                  io_uring answers reads from the page cache without a thread; some
                  hosts don't allow it
nbdkit has its own defaults in both roles: 16 threads, as many connections as come.

Over a link (far_delay) the images are not read from files but from one more server, the
far one: nbdkit file, with a delay for each request.  Then the limit is nbdkit's nbd
plugin with the raw disk, so that each answer comes over the same two hops.  nbdkit gets
DEPTH threads for each connection: one that waits for the far server does nothing else.
But where each layer of a chain has a connection of its own, the far server gets FEW for
each: more would wake each other up.
"""

import atexit
import os
import resource
import signal
import socket
import subprocess
import time

LIMIT, QEMU, PLUGIN = "limit", "qemu", "plugin"
KINDS = (LIMIT, QEMU, PLUGIN)
LABELS = {LIMIT: "limit", QEMU: "qemu-nbd", PLUGIN: "plugin"}

# Another build of the plugin, in its role.
BEFORE = "before"
LABELS[BEFORE] = "before"

# What the plugin is compared with, once more: how much two equal servers differ.
SELF = "self"
LABELS[SELF] = "itself"

# No server: a virtual machine that opens the image itself (lab/pictures).
DRIVER = "driver"
LABELS[DRIVER] = "QEMU itself"

# What a login shell has by default; it matters for long chains.
OPEN_FILES = 1024

# The most requests in flight on a connection when images come over a link, and on each of
# many.
DEPTH, FEW = 64, 2

_running = set()


class ServerError(Exception):
    """A server that does not start, or that does not survive its clients."""


@atexit.register
def kill_all():
    for process in list(_running):
        process.kill()
        process.wait()
        _running.discard(process)


def limit_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))


def many_files():
    """For a chain each layer of which is a connection."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _escape(path):
    # In QEMU's option strings.
    return path.replace(",", ",,")


def qemu_options(config):
    return ["-e", "16", "--discard=unmap", "--aio=" + config.qemu_aio,
            "--cache=" + ("none" if config.cold else "writeback")]


def qemu_image(image, l2_cache=None, l2_slice=None, secret=None):
    """How QEMU is told which image to open, and the options that this needs."""
    opts = "driver=qcow2,file.driver=file,file.filename=" + _escape(image)
    if l2_cache:
        opts += ",l2-cache-size=%d" % l2_cache
    if l2_slice:
        opts += ",l2-cache-entry-size=%d" % l2_slice
    if not secret:
        return opts, []
    return (opts + ",encrypt.key-secret=s",
            ["--object", "secret,id=s,file=" + _escape(secret)])


def far_socket(config):
    return os.path.join(config.sockets, "far")


def far_uri(config, name=""):
    """Of a file of config.images, through the far server."""
    return "nbd+unix:///%s?socket=%s" % (name, far_socket(config))


def far_command(config, delay, threads):
    """The command line of the far server; delay: of each request, in ms."""
    argv = [config.nbdkit, "-f", "-U", far_socket(config), "-t", str(threads)]
    if delay > 0:
        argv += ["--filter=delay"]
    argv += ["file", "dir=" + config.images]
    if delay > 0:
        argv += ["delay-%s=%gms" % (what, delay)
                 for what in ("read", "write", "zero", "trim", "extents", "cache")]
    return argv


def near_command(config, kind, image, sock):
    """The command line of a server whose image comes through the far server."""
    uri = far_uri(config, os.path.basename(image))
    if kind == QEMU:
        return ["qemu-nbd", "-t", "-k", sock] + qemu_options(config) + [
            "--image-opts", "driver=qcow2,file.driver=nbd,file.server.type=unix,"
            "file.server.path=%s,file.export=%s"
            % (_escape(far_socket(config)), _escape(os.path.basename(image)))]
    argv = [config.nbdkit, "-f", "-U", sock, "-t", str(DEPTH)]
    if kind == LIMIT:
        return argv + ["nbd", "uri=" + uri]
    return argv + [config.plugin, "file=" + uri, "lock=false",
                   "allow-uri=" + far_uri(config)]


def command(config, kind, image, sock, l2_cache=None, l2_slice=None, secret=None,
            durable=False):
    """The command line of a server.  secret: a file that holds a passphrase.  durable: the
    plugin's bitmaps are."""
    if kind == QEMU:
        argv = ["qemu-nbd", "-t", "-k", sock] + qemu_options(config)
        if image.startswith("json:"):
            return argv + [image]
        opts, objects = qemu_image(image, l2_cache, l2_slice, secret)
        argv += objects
        return argv + ["--image-opts", opts]

    argv = [config.nbdkit, "-f", "-U", sock]
    argv += ["file"] if kind == LIMIT else [config.plugin]
    argv += ["file=" + image]
    if config.cold:
        argv += ["cache=none"]
    if kind == PLUGIN:
        if l2_cache:
            argv += ["l2-cache=%d" % l2_cache]
        if l2_slice:
            argv += ["l2-slice=%d" % l2_slice]
        if secret:
            argv += ["passphrase=+" + secret]
        if durable:
            argv += ["bitmap-durable=true"]
    return argv


class Server:
    """A server for the length of a `with' block, ready when the block begins.

    With wait=False it may not be ready yet: for those who measure how long that takes.
    far_delay: in ms, if the image comes from the far server; that one is ready first.
    far_chain: each of the image's layers is a connection to it.
    name: of the socket, for those who start several.
    """

    def __init__(self, config, kind, image, wait=True, far_delay=None, far_chain=False,
                 name="sock", **options):
        self.config = config
        self.kind = kind
        self.name = LABELS[kind]
        self.sock = os.path.join(config.sockets, name)
        self.uri = "nbd+unix:///?socket=" + self.sock
        self.far = None
        self.files = limit_files
        if far_delay is None:
            self.argv = command(config, kind, image, self.sock, **options)
        else:
            self.argv = near_command(config, kind, image, self.sock)
            self.far = _Far(config, far_delay,
                            FEW if far_chain and kind != LIMIT else DEPTH)
            self.files = many_files
        self.wait = wait

    def __enter__(self):
        if self.far:
            self.far.__enter__()
        if os.path.exists(self.sock):
            os.unlink(self.sock)
        self.log = open(self.sock + ".log", "w+b")
        self.process = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            preexec_fn=self.files)
        _running.add(self.process)
        if self.wait:
            try:
                self._wait_until_ready()
            except BaseException:
                self._stop()
                if self.far:
                    self.far._stop()
                raise
        return self

    def __exit__(self, kind, error, traceback):
        status = self._stop()
        if self.far:
            self.far.__exit__(kind, error, traceback)
        if error is None and status not in (0, -signal.SIGTERM):
            raise ServerError("%s: ended with status %d: %s"
                              % (self.name, status, self.last_words()))

    def _wait_until_ready(self):
        end = time.monotonic() + 120
        while time.monotonic() < end:
            self.check_alive()
            with socket.socket(socket.AF_UNIX) as s:
                try:
                    s.connect(self.sock)
                    return
                except OSError:
                    time.sleep(0.005)
        raise ServerError("%s: did not start within 120 seconds" % self.name)

    def check_alive(self):
        if self.process.poll() is not None:
            raise ServerError("%s: %s" % (self.name, self.last_words()))

    def last_words(self):
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "nothing said"

    def peak_rss(self):
        """The most memory that the server had so far, in bytes."""
        with open("/proc/%d/status" % self.process.pid) as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return 0

    def _stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _running.discard(self.process)
        status = self.process.returncode
        if status == 0:
            self.log.close()
        return status


class _Far(Server):
    """The server that other servers get their images from."""

    def __init__(self, config, delay, threads):
        self.config = config
        self.name = "far"
        self.sock = far_socket(config)
        self.argv = far_command(config, delay, threads)
        self.wait = True
        self.far = None
        self.files = many_files
