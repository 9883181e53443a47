#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If QEMU refuses an image because of its header, check=quick finds a fault in it: each
# field at and around its limits.  (The plugin refuses more: tables beyond the end of the
# file, and tables that overlap.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

make_image "$tmp/4k.qcow2" 2M cluster_size=4k
make_image "$tmp/v2.qcow2" 64M compat=v2
make_image "$tmp/extended.qcow2" 64M extended_l2=on
make_image "$tmp/bitmap.qcow2" 8M cluster_size=4k
qemu-img bitmap --add "$tmp/bitmap.qcow2" b
truncate -s 64k "$tmp/base"
qemu-img create -q -f qcow2 -b base -F raw "$tmp/overlay.qcow2" 1M
for f in 4k v2 extended bitmap overlay; do
  qemu-io -f qcow2 -c 'write 0 64k' "$tmp/$f.qcow2"
done

"$python" - "$NBDKIT" "$PLUGIN" "$tmp" <<'PY'
import json, os, struct, subprocess, sys
nbdkit, plugin, tmp = sys.argv[1:]
report = tmp + "/report.json"


def run(*args):
    return subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True)


def cases(name, b):
    """Offset, bytes and values of fields."""
    bits, = struct.unpack_from(">I", b, 20)
    cs = 1 << bits
    l1n, l1 = struct.unpack_from(">IQ", b, 36)
    reach = l1n * cs * cs // (16 if name == "extended" else 8)
    yield 24, 8, (reach, reach + 1, reach + 511)
    if name == "overlay":
        yield 8, 8, (cs + 1,)
        yield 16, 4, (1024,)
    if name == "extended":
        yield 20, 4, (13,)
    if name == "bitmap":
        at = b.find(b"\x23\x85\x28\x75", 104, cs)
        yield at + 4, 4, (23, cs)
        yield at + 8, 4, (0, 2, 65536)
        yield at + 12, 4, (1,)
        yield at + 16, 8, (0, 65535 * 1024 + 1)
        yield at + 24, 8, (512,)
    if name == "4k":
        yield 4, 4, (1, 4)
        yield 20, 4, (8, 22)
        yield 24, 8, (reach + 512, 1 << 63)
        yield 32, 4, (2, 3)
        yield 36, 4, (l1n - 1, (1 << 22) + 1, 1 << 31)
        yield 40, 8, (l1 + 1, l1 + 512)
        yield 48, 8, (cs + 512,)
        yield 56, 4, ((8 << 20) // cs + 1,)
        yield 72, 8, (8, 32)
        yield 88, 8, (1, 2, 3)
        yield 96, 4, (7,)
        yield 100, 4, (103, cs - 4, cs + 1)
        yield 104, 1, (1, 2)


accepted = refused = 0
for name in "4k", "v2", "extended", "bitmap", "overlay":
    path = "%s/%s.qcow2" % (tmp, name)
    bad = tmp + "/bad.qcow2"
    with open(path, "rb") as f:
        good = f.read()
    for at, size, values in cases(name, good):
        for value in values:
            with open(bad, "wb") as f:
                f.write(good[:at] + value.to_bytes(size, "big") + good[at + size:])
            if os.path.exists(report):
                os.unlink(report)
            q = run("qemu-img", "check", "-f", "qcow2", bad)
            opens = b"Could not open" not in q.stderr
            p = run(nbdkit, "-U", "-", plugin, bad, "check=quick",
                    "check-report=" + report, "--run", "true")
            verdict = "none"
            if os.path.exists(report):
                verdict = json.load(open(report))["verdict"]
            sound = verdict in ("clean", "leaks", "dirty")
            if not opens and sound:
                sys.exit("%s: offset %d: %#x: QEMU: %s; we say %s"
                         % (name, at, value, q.stderr.decode(errors="replace"),
                            verdict))
            accepted += opens and sound
            refused += not opens
print("%d that QEMU opens and we call sound, %d that it does not open"
      % (accepted, refused))
assert accepted > 5 and refused > 35
PY
