#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Damages the metadata of images at random, and compares our check with QEMU's.

check_random.py NBDKIT PLUGIN SECONDS

An image that qemu-img check calls corrupt must also be corrupt for check=quick (or be
refused).  If QEMU finds only leaks, check=quick must find only leaks, and as many.  If
QEMU finds nothing wrong, check=quick may still refuse the image, but only for a kind of
damage that QEMU does not look for.  Both must count the same clusters of the disk, with
the exception that the manual names.  The image that check=repair then serves must be
valid for QEMU, and read as before.
SEED replays a run; FIRST: begin with this round.
"""

import json
import os
import random
import struct
import subprocess
import sys
import time

NBDKIT, PLUGIN, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
SEED = int(os.environ.get("SEED") or time.time())
FIRST = int(os.environ.get("FIRST") or 0)
MASK = 0x00fffffffffffe00

# Damage that qemu-img check does not look for, or reports as something else.
OURS = {"header", "snapshot", "snapshot-table", "bitmap", "overlap", "table-entry",
        "alignment", "encryption-header", "backing-chain", "beyond-end-of-file",
        "reserved-bits", "subclusters", "refcount-table"}

BASES = [
    ("plain", "cluster_size=4k", []),
    ("small", "cluster_size=512,refcount_bits=8", []),
    ("v2", "compat=v2,cluster_size=4k", []),
    ("wide", "cluster_size=64k,refcount_bits=64", []),
    ("narrow", "cluster_size=4k,refcount_bits=1", []),
    ("extended", "cluster_size=16k,extended_l2=on", []),
    ("snapshot", "cluster_size=4k", ["snapshot"]),
    ("bitmap", "cluster_size=4k", ["bitmap"]),
    ("compressed", "cluster_size=4k", ["compressed"]),
    ("external", "cluster_size=4k,data_file=external.raw", []),
]


def run(*args, **kw):
    return subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, **kw)


def make(name, options, extra, r):
    path = name + ".qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", "-o", options, path, "4M",
        check=True)
    script = []

    def writes(compress=""):
        for _ in range(8):
            at = r.randrange(0, 4 << 20, 512)
            n = min(r.randrange(512, 200 << 10, 512), (4 << 20) - at)
            script.extend(["-c", "write %s -P %d %d %d"
                           % (compress, r.randrange(1, 256), at, n)])

    if "compressed" in extra:
        for i in range(0, 60, 2):
            script.extend(["-c", "write -c -P %d %dk 4k" % (i + 1, 4 * i)])
    writes()
    run("qemu-io", "-f", "qcow2", *script, path, check=True)
    if "snapshot" in extra:
        run("qemu-img", "snapshot", "-c", "one", path, check=True)
        script.clear()
        writes()
        run("qemu-io", "-f", "qcow2", *script[:6], path, check=True)
    if "bitmap" in extra:
        run("qemu-img", "bitmap", "--add", "-g", "4096", path, "b", check=True)
        script.clear()
        writes()
        run("qemu-io", "-f", "qcow2", *script[:6], path, check=True)
    with open(path, "rb") as f:
        return f.read()


def regions(data):
    """Where the metadata are: the targets of random damage."""
    bits, = struct.unpack_from(">I", data, 20)
    l1n, l1 = struct.unpack_from(">IQ", data, 36)
    rt, = struct.unpack_from(">Q", data, 48)
    snaps, = struct.unpack_from(">Q", data, 64)
    version, = struct.unpack_from(">I", data, 4)
    feats = struct.unpack_from(">Q", data, 72)[0] if version > 2 else 0
    rbits = struct.unpack_from(">I", data, 96)[0] if version > 2 else 4
    step = 16 if feats & 16 else 8
    cs = 1 << bits

    def table(at, n):
        d = data[at:at + n * 8]
        return struct.unpack(">%dQ" % (len(d) // 8), d[:len(d) // 8 * 8])

    found = [("rt", rt, 16), ("l1", l1, l1n * 8)]
    for e in table(rt, cs // 8):
        if e:
            counts = (len(data) + cs - 1) // cs << rbits >> 3
            found.append(("rb", e, min(cs, counts)))
    for e in table(l1, l1n):
        if e & MASK:
            found.append(("l2", e & MASK, cs))
            if step == 16:
                found.append(("l2", e & MASK, cs))
    if snaps:
        found.append(("snapshots", snaps, 96))
    return found, cs, step


def damage(data, r):
    data = bytearray(data)
    found, cs, step = regions(data)
    what = []
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        kind, at, n = r.choice(found)
        how = r.randrange(5)
        if kind == "l2":
            # Entries in use are more interesting than others.
            used = [i for i in range(0, n, step)
                    if any(data[at + i:at + i + step])]
            if used:
                at += r.choice(used)
                n = step
        i = at + r.randrange(max(1, min(n, len(data) - at)))
        if i + 8 >= len(data):
            continue
        if how < 3:
            data[i] ^= 1 << r.randrange(8)
        elif how == 3:
            data[i] = r.randrange(256)
        else:
            i &= ~7
            new = r.randrange(len(data) // cs + 2) * cs
            data[i:i + 8] = struct.pack(">Q", new | r.randrange(2) << 63)
        what.append((kind, i, how))
    return bytes(data), what


def same_counters(q, report):
    """Compares the disk's counters, unless there are L2 tables that cannot be read."""
    try:
        theirs = json.loads(q.stdout)
    except ValueError:
        return True
    top = report["layers"][0]
    keys = ["total-clusters"]
    if not any("L2 table" in e["message"] or e["message"].startswith("L1 entry")
               for e in top["errors"]) and top["errors-omitted"] == 0:
        keys += ["allocated-clusters", "compressed-clusters", "fragmented-clusters"]
    if report["verdict"] in ("clean", "leaks"):
        keys.append("image-end-offset")
    return "version" not in top or "total-clusters" not in theirs or \
        all(top[k] == theirs.get(k, 0) for k in keys)


def serve(path, mode):
    if os.path.exists("report.json"):
        os.unlink("report.json")
    p = run(NBDKIT, "-U", "-", PLUGIN, path, "check=" + mode,
            "check-report=report.json", "--run", "true")
    report = None
    if os.path.exists("report.json"):
        with open("report.json", encoding="utf-8") as f:
            report = json.load(f)
    return p, report


def main():
    print("SEED=%d" % SEED, flush=True)
    r0 = random.Random(SEED)
    bases = [(b[0], make(*b, r0)) for b in BASES]
    end = time.time() + SECONDS
    n = corrupt = leaks = clean = stricter = repaired = 0
    rnd = FIRST
    while n < 20 or time.time() < end or (repaired == 0 and n < 500):
        r = random.Random("%d %d" % (SEED, rnd))
        name, data = bases[rnd % len(bases)]
        bad, what = damage(data, r)
        with open("bad.qcow2", "wb") as f:
            f.write(bad)
        with open("bad.qcow2", "rb") as f:
            before = f.read()
        q = run("qemu-img", "check", "-f", "qcow2", "--output=json", "bad.qcow2")
        p, report = serve("bad.qcow2", "quick")
        tell = "SEED=%d FIRST=%d %s %s: qemu %d, ours %d\n%s\n%s" % (
            SEED, rnd, name, what, q.returncode, p.returncode,
            q.stderr.decode(errors="replace"), p.stderr.decode(errors="replace"))
        if p.returncode not in (0, 1):
            sys.exit("crashed: " + tell)
        with open("bad.qcow2", "rb") as f:
            if f.read() != before:
                sys.exit("a check has changed the image: " + tell)
        verdict = report["verdict"] if report else "failed"
        kinds = set(e["kind"] for l in report["layers"] for e in l["errors"]) \
            if report else set()
        if report and not same_counters(q, report):
            sys.exit("other counters: " + tell + q.stdout.decode() +
                     json.dumps(report, indent=1))
        if q.returncode in (1, 2) and verdict not in ("corrupt", "failed"):
            # If the snapshot table is damaged, QEMU checks nothing else.
            sys.exit("QEMU says corrupt, we don't: " + tell)
        if q.returncode == 3:
            if verdict == "leaks":
                if json.loads(q.stdout)["leaks"] != report["leaks"]:
                    sys.exit("another number of leaks: " + tell)
            elif not (verdict == "corrupt" and kinds & OURS):
                sys.exit("QEMU says leaks, we don't: " + tell)
        if q.returncode == 0 and verdict != "clean":
            if not kinds & OURS:
                sys.exit("QEMU says clean, we don't: " + tell)
            stricter += 1
        if verdict in ("corrupt", "leaks"):
            c = run("qemu-img", "convert", "-f", "qcow2", "-O", "raw",
                    "bad.qcow2", "before.raw")
            p, report = serve("bad.qcow2", "repair")
            tell += p.stderr.decode(errors="replace")
            if report and report["repaired"] and report["ok"]:
                repaired += 1
                q = run("qemu-img", "check", "-f", "qcow2", "bad.qcow2")
                if q.returncode != 0:
                    sys.exit("repaired, but not for QEMU: " + tell +
                             q.stdout.decode() + q.stderr.decode())
                if c.returncode == 0:
                    run("qemu-img", "convert", "-f", "qcow2", "-O", "raw",
                        "bad.qcow2", "after.raw", check=True)
                    if run("cmp", "before.raw", "after.raw").returncode:
                        sys.exit("repaired, and reads differently: " + tell)
            else:
                with open("bad.qcow2", "rb") as f:
                    if f.read() != before:
                        sys.exit("not repaired, but changed: " + tell)
        n += 1
        rnd += 1
        corrupt += verdict == "corrupt"
        leaks += verdict == "leaks"
        clean += verdict == "clean"
    print("%d images: %d corrupt, %d leaks, %d clean; %d that QEMU calls clean; "
          "%d repaired" % (n, corrupt, leaks, clean, stricter, repaired))
    if corrupt == 0 or repaired == 0:
        sys.exit("nothing was tested")


main()
