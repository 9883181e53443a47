#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Hostile headers, and what others say about them.

hostile.py make DIRECTORY COUNT
    Makes images whose headers are changed at random, from those in DIRECTORY that are
    named *.good, and some that are no qcow2 images.  The environment variable SEED replays
    them.

hostile.py judge OURS STREAMS IMAGE...
    OURS and STREAMS are reports (--json) of nbdkit-qcow2-validate --policy upload about
    the images as files and as streams.  Compares them with each other, with qemu-img info,
    and with format_inspector of oslo.utils if it is installed: it prints whether it is.
"""

import glob
import json
import os
import random
import struct
import subprocess
import sys

# field: (offset, format, values)
FIELDS = {
    "magic": (0, ">I", [0x514649fa, 0, 0x514649fb]),
    "version": (4, ">I", [0, 1, 2, 3, 4, 0xffffffff]),
    "backing offset": (8, ">Q", [0, 1, 72, 104, 112, 200, 511, 512, 4096, 65535, 65536,
                                 1 << 20, 1 << 63]),
    "backing size": (16, ">I", [0, 1, 8, 100, 1023, 1024, 65535, 0xffffffff]),
    "cluster bits": (20, ">I", [0, 8, 9, 12, 13, 14, 16, 21, 22, 63, 0xffffffff]),
    "size": (24, ">Q", [0, 1, 511, 512, 1 << 20, 1 << 40, (1 << 63) - 1, 1 << 63,
                        (1 << 64) - 1]),
    "encryption": (32, ">I", [0, 1, 2, 3]),
    "L1 size": (36, ">I", [0, 1, 2, 1 << 20, 1 << 22, (1 << 22) + 1, 0xffffffff]),
    "L1": (40, ">Q", [0, 1, 512, 65536, 1 << 20, 1 << 40, 1 << 56, 1 << 63]),
    "reftable": (48, ">Q", [0, 1, 512, 65536, 1 << 20, 1 << 40, 1 << 56]),
    "reftable clusters": (56, ">I", [0, 1, 2, 128, 129, 1 << 14, 0xffffffff]),
    "snapshots": (60, ">I", [0, 1, 2, 65536, 65537, 0xffffffff]),
    "snapshot table": (64, ">Q", [0, 1, 65536, 1 << 40]),
    "incompatible": (72, ">Q", [0, 1, 2, 3, 4, 8, 16, 31, 32, 1 << 63]),
    "compatible": (80, ">Q", [0, 1, 2, 1 << 63]),
    "autoclear": (88, ">Q", [0, 1, 2, 3, 4]),
    "refcount order": (96, ">I", [0, 4, 6, 7, 32]),
    "header length": (100, ">I", [0, 72, 103, 104, 105, 111, 112, 120, 65536, 65537,
                                  0xffffffff]),
    "compression": (104, ">B", [0, 1, 2, 255]),
    "extension": (112, ">I", [0, 0xe2792aca, 0x6803f857, 0x23852875, 0x0537be77,
                              0x44415441, 0x12345678]),
    "extension length": (116, ">I", [0, 1, 8, 15, 16, 24, 65536, 0xffffffff]),
    "name": (120, "8s", [b"/etc/x\0\0", b"raw\0\0\0\0\0", b"nbd://x/", b"a\nb\0\0\0\0\0",
                         b"\0" * 8, b"\xff" * 8]),
}

# What others are not expected to see: why, is in the manual.
OURS_ONLY = {"header", "sizes", "truncated", "external-name", "unsupported"}


def make(directory, count):
    seed = int(os.environ.get("SEED") or int.from_bytes(os.urandom(4), "big"))
    print("SEED=%d" % seed, flush=True)
    rng = random.Random(seed)
    good = sorted(glob.glob(os.path.join(directory, "*.good")))
    for i in range(count):
        with open(rng.choice(good), "rb") as f:
            data = bytearray(f.read())
        for name in rng.sample(sorted(FIELDS), rng.choice((1, 1, 2, 3))):
            at, form, values = FIELDS[name]
            struct.pack_into(form, data, at, rng.choice(values))
        if rng.random() < 0.1:
            del data[rng.choice((0, 3, 4, 24, 71, 72, 103, 104, 511, 512, 65536,
                                 len(data) - 1)):]
        with open(os.path.join(directory, "h%04d" % i), "wb") as f:
            f.write(data)
    for name, data in (("empty", b""), ("raw", bytes(1 << 20)), ("text", b"hello\n" * 999),
                       ("qcow1", struct.pack(">4sI", b"QFI\xfb", 1) + bytes(4096)),
                       ("qed", b"QED\0" + bytes(4096)),
                       ("vmdk", b"KDMV" + bytes(4096)),
                       ("later", bytes(512) + open(good[0], "rb").read()),
                       ("mbr", marked(good[0], 510, b"\x55\xaa")),
                       ("vdi", marked(good[0], 64, b"\x7f\x10\xda\xbe")),
                       ("iso", marked(good[0], 32769, b"CD001")),
                       ("udf", marked(good[0], 32769, b"NSR02"))):
        with open(os.path.join(directory, "h" + name), "wb") as f:
            f.write(data)


def marked(name, at, mark):
    with open(name, "rb") as f:
        data = f.read()
    return data[:at] + mark + data[at + len(mark):]


def oslo():
    try:
        from oslo_utils.imageutils import format_inspector
    except ImportError:
        return None

    def accepts(name):
        try:
            inspector = format_inspector.detect_file_format(name)
            inspector.safety_check()
        except Exception:
            return False
        return str(inspector) == "qcow2"
    return accepts


def codes(report):
    return {os.path.basename(i["image"]): [f["code"] for f in i["findings"]]
            for i in json.load(open(report))["images"]}


def qemu_accepts(name):
    p = subprocess.run(["qemu-img", "info", "-U", "--output=json", name],
                       capture_output=True)
    return p.returncode == 0 and json.loads(p.stdout)["format"] == "qcow2"


def judge(ours, streams, images):
    ours, streams, inspector = codes(ours), codes(streams), oslo()
    faults, accepted = [], 0
    print("oslo.utils: %s" % ("compared" if inspector else "not installed"))
    for path in images:
        name = os.path.basename(path)
        found = ours[name]
        accepted += not found
        qemu = qemu_accepts(path)
        other = inspector(path) if inspector else not found
        # (Of a stream that is refused, the length is not known.)
        if set(streams[name]) - {"truncated"} != set(found) - {"truncated", "unsupported"} \
                or (found == ["truncated"]) != (streams[name] == ["truncated"]):
            faults.append((name, found, "as a stream:", streams[name]))
        if not found and not qemu:
            faults.append((name, "is accepted, but not by QEMU"))
        # It does not know extended L2 entries, and finds features in version 2.
        with open(path, "rb") as f:
            head = f.read(80)
        if not found and not other and head[7] == 3 and not head[79] & 16:
            faults.append((name, "is accepted, but not by oslo.utils"))
        if qemu and other and not set(found) <= OURS_ONLY:
            faults.append((name, found, "but QEMU and oslo.utils accept it"))
    print("%d images, %d accepted" % (len(images), accepted))
    if faults:
        raise SystemExit("\n".join(map(str, faults)))


if sys.argv[1] == "make":
    make(sys.argv[2], int(sys.argv[3]))
else:
    judge(sys.argv[2], sys.argv[3], sys.argv[4:])
