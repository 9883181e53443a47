#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Images that combine features of the format at random.

mixture.py make DIRECTORY SPEC
    Makes the layers of an image in DIRECTORY with qemu-img and qemu-io; the active
    one is top.qcow2.  The contents of the disk go to model.raw, those of each internal
    snapshot to NAME.raw.  SPEC (JSON) receives the random choices.  The environment
    variable SEED replays them; FEATURES contains those of the words extended_l2,
    data_file, luks, aes, zstd, compress that the server supports.

mixture.py show SPEC
    Prints a line about it, the parameters for the server, the cluster size, or how QEMU
    opens the image: "show SPEC line|parameters|cluster|trim|node".

mixture.py judge DIRECTORY SPEC
    Lets QEMU check the image after the server has ended: metadata (leaks are failures),
    contents (compared with model.raw), the internal snapshots, the bitmaps.  Then QEMU
    writes to the image, and must find it valid again.
"""

import json
import os
import random
import struct
import subprocess
import sys

SECRET = "open sesame"


def run(*argv, tries=1):
    for left in reversed(range(tries)):
        p = subprocess.run(argv, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if p.returncode == 0:
            return p.stdout.decode()
        if left == 0:
            raise SystemExit("%s\nexit status %d: %s" % (
                " ".join(argv), p.returncode, p.stdout.decode()))


def secret(directory):
    return "secret,id=s,file=%s/secret" % directory


def node(directory, layers):
    """How QEMU opens the last of the layers, with all layers below."""
    n = None
    for i, layer in enumerate(layers):
        this = {"driver": layer["driver"],
                "file": {"driver": "file",
                         "filename": os.path.join(directory, layer["name"])}}
        if layer.get("encrypt"):
            this["encrypt"] = {"format": layer["encrypt"], "key-secret": "s"}
        if layer.get("data_file"):
            this["data-file"] = {"driver": "file",
                                 "filename": os.path.join(directory,
                                                          layer["data_file"])}
        if i > 0:
            this["backing"] = n
        this["discard"] = "unmap"
        n = this
    return "json:" + json.dumps(n)


class Maker:
    def __init__(self, directory, features, rng):
        self.directory, self.features, self.rng = directory, features, rng
        with open(os.path.join(directory, "secret"), "w") as f:
            f.write(SECRET)

    def maybe(self, probability, *needs):
        return self.rng.random() < probability and \
            all(n in self.features for n in needs)

    def qcow2(self, name, top, below):
        rng = self.rng
        layer = {"driver": "qcow2", "name": name, "options": {}}
        o = layer["options"]
        bits = rng.choice((9, 9, 12, 14, 16, 16, 16, 18, 21))
        v3 = rng.random() < 0.85
        if v3:
            o["refcount_bits"] = rng.choice((1, 2, 4, 8, 16, 16, 16, 32, 64))
            if self.maybe(0.4, "extended_l2"):
                o["extended_l2"] = "on"
                bits = max(bits, rng.choice((14, 16, 17)))
            if self.maybe(0.3):
                o["lazy_refcounts"] = "on"
            if self.maybe(0.3, "zstd"):
                o["compression_type"] = "zstd"
            if self.maybe(0.25, "data_file"):
                layer["data_file"] = o["data_file"] = name + ".data"
                if not below and self.maybe(0.5):
                    o["data_file_raw"] = "on"
        else:
            o["compat"] = "0.10"
        o["cluster_size"] = 1 << bits
        if not layer.get("data_file"):
            which = rng.choice((None, None, "luks", "aes"))
            if which in self.features:
                layer["encrypt"] = which
                o["encrypt.format"] = which
                o["encrypt.key-secret"] = "s"
                if which == "luks":
                    o["encrypt.iter-time"] = 10
        if not below and self.maybe(0.3):
            o["preallocation"] = rng.choice(("metadata", "falloc"))
        largest = {9: 1 << 20, 12: 4 << 20}.get(bits, 12 << 20)
        layer["size"] = 512 * (1 + rng.randrange(2 * (1 << bits) // 512
                                                 if self.maybe(0.1)
                                                 else largest // 512))
        if o.get("data_file_raw"):
            layer["size"] = max(layer["size"], 65536)
        return layer

    def create(self, layers):
        layer = layers[-1]
        path = os.path.join(self.directory, layer["name"])
        if layer["driver"] == "raw":
            with open(path, "wb") as f:
                f.truncate(layer["size"])
            return
        argv = ["qemu-img", "create", "-q", "-f", "qcow2",
                "--object", secret(self.directory)]
        for key, value in layer["options"].items():
            if key == "data_file":
                value = os.path.join(self.directory, value)
            argv += ["-o", "%s=%s" % (key, value)]
        if len(layers) > 1:
            argv += ["-u", "-b", layers[-2]["name"],
                     "-F", layers[-2]["driver"]]
        # For LUKS, qemu-img measures its own speed, and fails at random when
        # the machine is busy.
        run(*argv, path, str(layer["size"]), tries=20)

    def compressed(self, layer):
        """Commands that write compressed clusters to clusters that were never written."""
        rng, cluster = self.rng, layer["options"]["cluster_size"]
        clusters = layer["size"] // cluster
        at, commands = rng.randrange(4), []
        while at < clusters and len(commands) < 6:
            n = min(1 + rng.randrange(20 if cluster < 65536 else 3),
                    clusters - at)
            commands.append("write -c -P %d %d %d" % (
                1 + rng.randrange(255), at * cluster, n * cluster))
            at += n + rng.randrange(clusters // 3 + 1)
        return commands

    def change(self, layer):
        rng, size = self.rng, layer["size"]
        cluster = layer.get("options", {}).get("cluster_size", 512)
        unit = rng.choice((1, 512, 4096, cluster))
        if unit > size // 2:
            unit = 1
        offset = rng.randrange(size) // unit * unit
        count = min(size - offset,
                    unit * (1 + rng.randrange(min(size // 4 + 1, 262144)) // unit))
        kind = rng.randrange(6)
        if kind == 0:
            return "write -z%s %d %d" % (rng.choice(("", "u")), offset, count)
        if kind == 1:
            return "discard %d %d" % (offset, count)
        return "write -P %d %d %d" % (1 + rng.randrange(255), offset, count)

    def fill(self, layers, n, compressed=False):
        layer, argv = layers[-1], []
        commands = self.compressed(layer) if compressed else []
        commands += [self.change(layer) for _ in range(n)]
        for c in commands:
            argv += ["-c", c]
        if argv:
            run("qemu-io", "-t", "unsafe", "--object", secret(self.directory),
                *argv, node(self.directory, layers))

    def convert(self, layers, out, *options):
        run("qemu-img", "convert", "--object", secret(self.directory),
            *options, "-O", "raw", node(self.directory, layers),
            os.path.join(self.directory, out))

    def make(self):
        rng = self.rng
        layers = []
        depth = rng.choice((0, 0, 0, 1, 1, 2, 3))
        for i in range(depth + 1):
            top = i == depth
            name = "top.qcow2" if top else "layer%d" % i
            if i == 0 and not top and rng.random() < 0.4:
                layers.append({"driver": "raw", "name": name,
                               "size": 512 * (1 + rng.randrange(8192))})
            else:
                layers.append(self.qcow2(name, top, layers))
            self.create(layers)
            layer = layers[-1]
            can_compress = layer["driver"] == "qcow2" and \
                not layer.get("data_file") and not layer.get("encrypt") and \
                "preallocation" not in layer["options"]
            layer["compressed"] = can_compress and rng.random() < 0.4
            self.fill(layers, rng.randrange(9), layer["compressed"])
        top = layers[-1]
        spec = {"layers": layers, "snapshots": [], "bitmaps": []}
        self.snapshots(spec, top)
        self.bitmaps(spec, top)
        self.convert(layers, "model.raw")
        spec["parameters"] = self.parameters(top, layers)
        return spec

    def snapshots(self, spec, top):
        width = top["options"].get("refcount_bits", 16)
        if top.get("data_file") or width < (16 if top["compressed"] else 2):
            return
        for name in ("s0", "s1")[:self.rng.choice((0, 0, 1, 2))]:
            run("qemu-img", "snapshot", "--object", secret(self.directory),
                "-c", name, node(self.directory, spec["layers"]))
            self.convert(spec["layers"], name + ".raw",
                         "-l", "snapshot.name=" + name)
            spec["snapshots"].append(name)
            if self.rng.random() < 0.5:
                self.fill(spec["layers"], 3)

    def bitmaps(self, spec, top):
        if top["options"].get("compat") or self.rng.random() < 0.5:
            return
        for name in ("follows", "still"):
            granularity = 1 << self.rng.randrange(9, 21)
            run("qemu-img", "bitmap", "--object", secret(self.directory),
                "--add", "-g", str(granularity), node(self.directory, [top]), name)
            spec["bitmaps"].append(name)
        self.fill(spec["layers"], 2)
        run("qemu-img", "bitmap", "--object", secret(self.directory),
            "--disable", node(self.directory, [top]), "still")

    def parameters(self, top, layers):
        rng, p = self.rng, []
        cluster = top["options"]["cluster_size"]
        p.append("l2-cache=%d" % rng.choice((0, 65536, 32 << 20)))
        p.append("l2-slice=%d" % min(cluster, 512 << rng.randrange(13)))
        p.append("discard=" + rng.choice(("unmap", "unmap", "ignore")))
        p.append("detect-zeroes=" + rng.choice(("off", "off", "on", "unmap")))
        p.append("cache=" + rng.choice(("default", "default", "none")))
        if any(layer.get("encrypt") for layer in layers):
            p.append("passphrase=" + SECRET)
        if not top.get("encrypt") and not top.get("data_file") and \
                self.maybe(0.4, "compress"):
            p.append("compress=on")
        return p


# --- judging ---

def read(directory, name):
    with open(os.path.join(directory, name), "rb") as f:
        return f.read()


def bitmap_bits(directory, spec, name):
    """Which pieces of the disk are marked?  And how large are they, in bytes?"""
    path = os.path.join(directory, "top.qcow2")
    cluster = spec["layers"][-1]["options"]["cluster_size"]
    where = run(sys.executable, os.path.join(os.path.dirname(
        os.path.abspath(__file__)), "bitmaps.py"), "where", path, name)
    entry = int(where.split()[0])
    with open(path, "rb") as f:
        f.seek(entry)
        table, n, flags, _, granularity = struct.unpack(">QIIBB", f.read(18))
        if flags & 1:
            raise SystemExit("bitmap %s is in use" % name)
        bits = b""
        for i in range(n):
            f.seek(table + 8 * i)
            at, = struct.unpack(">Q", f.read(8))
            if at & 1:
                bits += b"\xff" * cluster
            elif at == 0:
                bits += bytes(cluster)
            else:
                f.seek(at)
                bits += f.read(cluster)
    return bits, 1 << granularity


def judge_bitmaps(directory, spec):
    if not spec["bitmaps"]:
        return
    bits, granularity = bitmap_bits(directory, spec, "follows")
    before = read(directory, "before.raw")
    after = read(directory, "model.raw")
    for at in range(0, len(after), granularity):
        i = at // granularity
        if before[at:at + granularity] != after[at:at + granularity] and \
                not bits[i // 8] >> (i % 8) & 1:
            raise SystemExit("the bitmap does not know of a change at %d" % at)
    bits, _ = bitmap_bits(directory, spec, "still")
    with open(os.path.join(directory, "still.bits"), "rb") as f:
        if f.read() != bits:
            raise SystemExit("the bitmap that is disabled has changed")


def judge(directory, spec):
    layers = spec["layers"]
    opened = node(directory, layers)
    maker = Maker(directory, (), random.Random(1))
    check = ("qemu-img", "check", "--object", secret(directory), opened)
    run(*check)
    judge_bitmaps(directory, spec)
    maker.convert(layers, "as.raw")
    model = read(directory, "model.raw")
    if read(directory, "as.raw") != model:
        raise SystemExit("QEMU reads something else than was written")
    if layers[-1]["options"].get("data_file_raw") and \
            read(directory, layers[-1]["data_file"])[:len(model)] != model:
        raise SystemExit("the raw data file holds something else")
    for name in spec["snapshots"]:
        maker.convert(layers, "as.raw", "-l", "snapshot.name=" + name)
        if read(directory, "as.raw") != read(directory, name + ".raw"):
            raise SystemExit("snapshot %s has changed" % name)
    maker.fill(layers, 8)
    run(*check)


def main():
    command = sys.argv[1]
    if command == "make":
        directory, out = sys.argv[2:4]
        seed = int(os.environ.get("SEED") or
                   int.from_bytes(os.urandom(4), "big"))
        print("SEED=%d" % seed, flush=True)
        features = os.environ.get("FEATURES", "").split()
        spec = Maker(directory, features, random.Random(seed)).make()
        if spec["bitmaps"]:
            with open(os.path.join(directory, "still.bits"), "wb") as f:
                f.write(bitmap_bits(directory, spec, "still")[0])
        with open(os.path.join(directory, "before.raw"), "wb") as f:
            f.write(read(directory, "model.raw"))
        with open(out, "w") as f:
            json.dump(spec, f)
        return
    with open(sys.argv[-1] if command == "judge" else sys.argv[2]) as f:
        spec = json.load(f)
    top = spec["layers"][-1]
    if command == "judge":
        judge(sys.argv[2], spec)
    elif sys.argv[3] == "parameters":
        print("\n".join(spec["parameters"]))
    elif sys.argv[3] == "node":
        print(node(os.path.dirname(sys.argv[2]), spec["layers"]))
    elif sys.argv[3] == "cluster":
        print(top["options"]["cluster_size"])
    elif sys.argv[3] == "trim":
        # With version 2, and a layer below, a trim may do nothing.
        print("keep" if "discard=ignore" in spec["parameters"] else
              "any" if top["options"].get("compat") and
              len(spec["layers"]) > 1 else "zero")
    else:
        print("%d below (%s), %s, %d snapshots, %d bitmaps%s; %s" % (
            len(spec["layers"]) - 1,
            " ".join(layer["driver"] + ("+" + layer["encrypt"]
                                        if layer.get("encrypt") else "") +
                     ("+data" if layer.get("data_file") else "")
                     for layer in spec["layers"][:-1]),
            " ".join("%s=%s" % kv for kv in sorted(top["options"].items())),
            len(spec["snapshots"]), len(spec["bitmaps"]),
            ", compressed" if top["compressed"] else "",
            " ".join(spec["parameters"])))


if __name__ == "__main__":
    main()
