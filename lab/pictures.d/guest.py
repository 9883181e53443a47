# SPDX-License-Identifier: BSD-3-Clause
"""What does a virtual machine see of the kinds of images: dd and bonnie++, when its disk
comes over NBD from the plugin or from qemu-nbd, or when QEMU opens the image itself?

The machine (class Machine) is Debian's kernel with busybox, dd, mke2fs and bonnie++ in an
initramfs.  It boots once for each sample, does all that is measured, and powers off: so
the first row of a group takes the figures of all of them (Sitting).  dd uses the first
partition, bonnie++ the second.
"""

import gzip
import os
import re
import shutil
import struct
import subprocess

import clients
import images
import rows
from draw import Bars, svg, triple
from images import MiB
from plots import COLOURS
from rows import Group, Row, Sample
from servers import DRIVER, LABELS, PLUGIN, QEMU, Server, qemu_image

NOTES = [
    "QEMU emulates the processor of this machine (TCG): most of the time goes into that,"
    " whatever the disk.  So differences between disks are smaller than with KVM.",
    "dd: blocks of 1M; writes are of zeroes and end with fdatasync, and the guest's page"
    " cache is emptied before each read.  bonnie++ uses blocks of 8K, in ext4.  snapshot:"
    " an internal one, so that writes copy.  sparse, metadata and full are empty before.",
]
KINDS = (DRIVER, QEMU, PLUGIN)
PROGRAMS = ("qemu-system-x86_64", "busybox", "cpio", "dd", "mke2fs", "bonnie++", "ldd")
INSIDE = ("busybox", "dd", "mke2fs", "bonnie++")
MODULES = ("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev",
           "virtio_pci", "virtio_blk")
MEMORY = 128                    # MiB; less than what bonnie++ writes

# Of images: name, does it hold data?
DISKS = (("sparse", False), ("metadata", False), ("full", True), ("compressed", True),
         ("encrypted", True), ("snapshot", True))
# What is measured: key, title, unit.
FIGURES = (
    ("read", "dd, reading the image as it was made", "MiB/s"),
    ("write", "dd, writing", "MiB/s"),
    ("again", "dd, reading what it wrote", "MiB/s"),
    ("put", "bonnie++, writing", "MiB/s"),
    ("rewrite", "bonnie++, rewriting", "MiB/s"),
    ("get", "bonnie++, reading", "MiB/s"),
    ("seeks", "bonnie++, random seeks", "1000/s"),
)


def kernel(config):
    return os.path.join(config.top, "build", "guest")


def missing(config):
    """Why this can't be measured here."""
    for program in PROGRAMS:
        if not shutil.which(program):
            return "needs the program " + program
    if not os.path.exists(os.path.join(kernel(config), "lib")):
        return "needs Debian's kernel in build/guest, where scripts/test puts it"
    return None


# --- the machine

INIT = """#!/bin/busybox sh
PATH=/programs:/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for m in %(modules)s; do insmod /modules/$m.ko; done
cold () { sync; echo 3 > /proc/sys/vm/drop_caches; }
run () { echo "@$1"; shift; "$@" 2>&1; cold; }
run read dd if=/dev/vda1 of=/dev/null bs=1M count=%(dd)d
run write dd if=/dev/zero of=/dev/vda1 bs=1M count=%(dd)d conv=fdatasync
run again dd if=/dev/vda1 of=/dev/null bs=1M count=%(dd)d
mke2fs -q -t ext4 -O ^has_journal -m 0 -E nodiscard,lazy_itable_init=0 /dev/vda2
mount -t ext4 /dev/vda2 /disk
run bonnie bonnie++ -d /disk -s %(bonnie)d -r %(half)d -n 0 -f -u 0:0 -q -m guest
umount /disk
echo @end
poweroff -f
"""


class Machine:
    """dd: MiB that dd writes; bonnie: those of bonnie++."""

    def __init__(self, config, size):
        self.config = config
        # The first partition begins at 1 MiB.
        self.dd = size // MiB * 3 // 8 - 1
        self.second = self.dd + 1
        self.rest = size // MiB - self.second
        self.bonnie = max(self.rest * 7 // 8 & ~1, 2)

    def partitions(self):
        """The first sector of the disk."""
        table = b"".join(
            struct.pack("<4xB3xII", 0x83, start * 2048, length * 2048)
            for start, length in ((1, self.dd), (self.second, self.rest)))
        return bytes(446) + table + bytes(32) + b"\x55\xaa"

    def initrd(self):
        path = os.path.join(self.config.work, "initrd")
        if os.path.exists(path):
            return path
        root = os.path.join(self.config.work, "initrd.d")
        for name in ("bin", "programs", "modules", "proc", "dev", "disk", "etc", "tmp"):
            os.makedirs(os.path.join(root, name))
        programs = [shutil.which(name) for name in INSIDE]
        libraries = set()
        for program in programs:
            shutil.copy(program, os.path.join(
                root, "bin" if program.endswith("busybox") else "programs"))
            found = subprocess.run(["ldd", program], capture_output=True, text=True)
            libraries |= set(re.findall(r"(?:^\s|=> )(/\S+)", found.stdout, re.M))
        for library in libraries:
            os.makedirs(root + os.path.dirname(library), exist_ok=True)
            shutil.copy(library, root + library)
        for directory, _, names in os.walk(os.path.join(kernel(self.config), "lib")):
            for name in names:
                if name.partition(".ko")[0] in MODULES:
                    shutil.copy(os.path.join(directory, name),
                                os.path.join(root, "modules"))
        with open(os.path.join(root, "etc", "passwd"), "w") as f:
            f.write("root:x:0:0::/:/bin/sh\n")
        with open(os.path.join(root, "etc", "group"), "w") as f:
            f.write("root:x:0:\n")
        with open(os.path.join(root, "init"), "w") as f:
            f.write(INIT % {"modules": " ".join(MODULES), "dd": self.dd,
                            "bonnie": self.bonnie, "half": self.bonnie // 2})
            os.chmod(f.fileno(), 0o755)
        names = sorted(os.path.relpath(os.path.join(directory, name), root)
                       for directory, below, files in os.walk(root)
                       for name in below + files)
        packed = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root,
                                input="\n".join(names).encode(), capture_output=True,
                                check=True)
        with gzip.open(path, "wb", 1) as f:
            f.write(packed.stdout)
        return path

    def run(self, disk):
        """DISK: options of QEMU.  Returns figures by name."""
        argv = ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "qemu64,+rdrand",
                "-m", "%dM" % MEMORY, "-nographic", "-nic", "none", "-no-reboot",
                "-kernel", os.path.join(kernel(self.config), "vmlinuz"),
                "-initrd", self.initrd(),
                # Without the processor's random numbers, mke2fs waits for others.
                "-append", "console=ttyS0 quiet no_timer_check panic=-1"
                " random.trust_cpu=on"] + disk
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=clients.HANGS,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired:
            raise clients.ClientError("the guest did not power off") from None
        said = done.stdout.decode(errors="replace")
        if done.returncode != 0 or "@end" not in said:
            raise clients.ClientError("the guest: " + (said.strip().splitlines()
                                                       or [""])[-1][-300:])
        return self.figures(said)

    def figures(self, said):
        found = {}
        for name, count, seconds in re.findall(
                r"@(\w+)\s[^@]*?\s(\d+) bytes [^@\n]* copied, ([0-9.e-]+) s", said):
            if int(count) != self.dd * MiB:
                raise clients.ClientError("dd in the guest: %s bytes" % count)
            found[name] = int(count) / float(seconds) / MiB
        line = re.search(r"^\d[.0-9]*,2[^,]*,guest,.*", said, re.M)
        if not line:
            raise clients.ClientError("bonnie++ in the guest: no result")
        # bonnie++ has no figure ("+++++") for what took less than half a second.
        values = line.group(0).split(",")
        for name, column, factor in (("put", 11, 1024), ("rewrite", 13, 1024),
                                     ("get", 17, 1024), ("seeks", 19, 1000)):
            if "+" not in values[column]:
                found[name] = float(values[column]) / factor
        return found


class Sitting:
    """The samples of all rows of a group: the first one boots the machine."""

    def __init__(self, machine, path, secret):
        self.machine, self.path, self.secret = machine, path, secret
        self.found = {}

    def attached(self, config, kind, image):
        """Figures, and the peak memory of the server."""
        if kind == DRIVER:
            options, objects = qemu_image(image, secret=self.secret)
            return self.machine.run(
                objects + ["-drive", "if=virtio,cache=%s,file.aio=%s,%s" % (
                    "none" if config.cold else "writeback", config.qemu_aio, options)]), 0
        with Server(config, kind, image, secret=self.secret) as server:
            found = self.machine.run(
                ["-drive", "if=virtio,format=raw,file=" + server.uri])
            return found, server.peak_rss()

    def take(self, name, first):
        def sample(config, kind):
            if first:
                self.found.pop(kind, None)
                image = images.fresh_copy(self.path, config.path("disk.qcow2"))
                rows.settle(config)
                rows.claim_memory(config)
                self.found[kind] = self.attached(config, kind, image)
            if kind not in self.found:
                raise clients.ClientError("the guest did not run")
            figures, rss = self.found[kind]
            if name not in figures:
                raise clients.ClientError("too fast for bonnie++")
            return Sample(figures[name], rss)
        return sample


# --- the picture

def make_image(config, machine, kind, path, size, secret):
    raw = config.path("guest.raw")
    if kind in ("sparse", "metadata", "full"):
        images.empty_raw(raw, size)
    else:
        images.text_raw(raw, size)
    with open(raw, "r+b") as f:
        f.write(machine.partitions())
    if kind == "encrypted":
        images.luks(raw, path, secret)
    elif kind == "compressed":
        images.in_order(raw, path, compression="zlib")
    elif kind == "snapshot":
        images.in_order(raw, path)
        images.run("qemu-img", "snapshot", "-c", "before", path)
    else:
        images.empty_qcow2(path, size,
                           preallocation="off" if kind == "sparse" else kind)
        images.write_pieces(config, path, raw, [(0, 4096)])
    os.unlink(raw)


def groups(config):
    # Nobody serves for QEMU itself, so --servers does not name it.
    config.kinds = [kind for kind in config.kinds if kind != DRIVER] + [DRIVER]
    size = max(config.size // 2, 16 * MiB)
    machine = Machine(config, size)
    made = []
    for i, (kind, holds_data) in enumerate(DISKS):
        if config.quick and kind != "compressed":
            continue
        path = config.path("guest.qcow2")
        secret = config.path("secret") if kind == "encrypted" else None
        sitting = Sitting(machine, path, secret)
        measured = [Row("%s: %s" % (kind, title), unit, kinds=KINDS,
                        curve=(name, "image", i))
                    for name, title, unit in FIGURES
                    if (holds_data or name != "read")
                    # (bonnie++ runs, but has no figures for so short a time.)
                    and not (config.quick and title.startswith("bonnie"))]
        for row in measured:
            row.sample = sitting.take(row.curve[0], row is measured[0])
        made.append(Group(
            "a guest's disk of %d MiB, %s" % (size // MiB, kind), measured,
            lambda config, kind=kind, path=path, secret=secret: make_image(
                config, machine, kind, path, size, secret),
            size * 4, reference=DRIVER))
    return made


def draw(groups, path):
    drawn = sorted({row.curve[2] for group in groups for row in group.rows})
    panels = []
    for name, title, unit in FIGURES:
        found = {row.curve[2]: row for group in groups for row in group.rows
                 if row.curve[0] == name}
        shown = [i for i in drawn if i in found]
        # Every other name a line lower: they need the room.
        panels.append(Bars(
            title, {"MiB/s": "MiB per second", "1000/s": "1000 per second"}[unit],
            ["\n" * (n % 2) + DISKS[i][0] for n, i in enumerate(shown)],
            [(LABELS[kind], COLOURS[kind], [triple(found[i], kind) for i in shown])
             for kind in KINDS]))
    return svg(path, "What a virtual machine with an emulated processor sees of its disk",
               panels, columns=3, width=560, notes=NOTES)
