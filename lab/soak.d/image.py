# SPDX-License-Identifier: BSD-3-Clause
"""An image at rest: QEMU judges it, and nbdkit changes it before serving."""

import json
import os
import struct
import subprocess

import mixture
from model import Failure

CLEAN, LEAKS = 0, 3             # exit statuses of qemu-img check


class Image:
    """The active image of a chain (see mixture.py), with its secret in directory."""

    def __init__(self, directory, layers):
        self.directory, self.layers = directory, layers

    @property
    def path(self):
        return os.path.join(self.directory, self.layers[-1]["name"])

    @property
    def cluster(self):
        return self.layers[-1]["options"]["cluster_size"]

    @property
    def version(self):
        return 2 if self.layers[-1]["options"].get("compat") else 3

    def files(self):
        top = self.layers[-1]
        return [os.path.join(self.directory, top[k])
                for k in ("name", "data_file") if top.get(k)]

    def header(self, at, fmt):
        with open(self.path, "rb") as f:
            f.seek(at)
            return struct.unpack(">" + fmt, f.read(struct.calcsize(">" + fmt)))[0]

    def has_backing(self):
        return self.header(8, "Q") != 0

    def is_dirty(self):
        return self.version == 3 and self.header(72, "Q") & 1 != 0

    def size(self):
        return self.header(24, "Q")

    def node(self):
        # A crash may have come before or after the link was removed.
        return mixture.node(self.directory,
                            self.layers if self.has_backing() else self.layers[-1:])

    def qemu_img(self, command, *args):
        return subprocess.run(
            ["qemu-img", command, "--object", mixture.secret(self.directory), *args],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False)

    def check(self, what, leaks):
        """No corruption; leaks only if they may be there."""
        if leaks and self.is_dirty():
            return                  # its refcounts are declared as outdated
        p = self.qemu_img("check", self.node())
        if p.returncode not in ((CLEAN, LEAKS) if leaks else (CLEAN,)):
            raise Failure("%s: qemu-img check: %s" % (what, p.stdout.decode()[-2000:]))

    def has_snapshot(self, name, contents):
        """qemu-img gives it the size that the disk has now."""
        found = self.contents(name)
        n = min(len(found), len(contents))
        return found[:n] == contents[:n]

    def contents(self, snapshot=None):
        out = self.path + ".as-raw"
        name = ["-l", "snapshot.name=" + snapshot] if snapshot else []
        p = self.qemu_img("convert", *name, "-O", "raw", self.node(), out)
        if p.returncode != 0:
            raise Failure("qemu-img convert: " + p.stdout.decode())
        with open(out, "rb") as f:
            found = f.read()
        os.unlink(out)
        return found

    def info(self):
        # (It opens no layers below.)
        p = self.qemu_img("info", "--output=json",
                          mixture.node(self.directory, self.layers[-1:]))
        if p.returncode != 0:
            raise Failure("qemu-img info: " + p.stdout.decode())
        return json.loads(p.stdout)

    def snapshots(self):
        return [s["name"] for s in self.info().get("snapshots", [])]

    def bitmaps(self):
        data = self.info().get("format-specific", {}).get("data", {})
        return [b["name"] for b in data.get("bitmaps", [])]
