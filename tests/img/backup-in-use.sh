#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Backups of disks that a client writes all the time: each generation, full or incremental,
# shows the disk as it was after one of the writes, and those of several disks show the same
# instant.  An incremental one has the clusters that were written, and no others.  Nothing is left
# in the image but a bitmap.  The disk is called by name, or by its file.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

mkdir images
make_image images/a 8M

cat > steps.py <<'END'
import json, subprocess, sys
sys.path.insert(0, sys.argv[1])
from backups import Log
from qmp import Client, connect
img, sock, qmp, exports = sys.argv[2:6]
names = exports.split(",")
log = Log(*[connect(sock, n) for n in names])
devices = [n or "disk" for n in names]

def backup(*options):
    return json.loads(subprocess.check_output(
        [img, "--control", qmp, "backup", "--output=json", *options, *devices, "backups"]))

def place(device):
    return "backups" + ("/" + device if len(devices) > 1 else "")

log.write(500)
was = None
for number, options in enumerate(([], [], ["-c", "--verify"], ["--full", "-Oraw"], []), 1):
    least = len(log.places) - 1
    log.start()
    told = backup(*options)
    log.stop()
    full = number in (1, 4)
    assert [g["kind"] for g in told] == ["full" if full else "incremental"] * len(names)
    assert all(("why-full" in g) == full for g in told), told
    for device in devices:
        subprocess.check_call([img, "restore", place(device), device + ".raw"])
    now = log.instant(*[d + ".raw" for d in devices], least=least)
    # (A write that waits at the instant may be marked before it.)
    for g, old, new in zip(told, was or now, now):
        assert full or log.clusters(old + 1, new) <= g["bytes"] / 65536 <= log.clusters(
            old, new + 1) < 100, g
    was = now
# All generations.
for number in range(1, 6):
    for device in devices:
        subprocess.check_call([img, "restore", "-g%d" % number, place(device),
                               device + ".raw"])
    log.instant(*[d + ".raw" for d in devices], least=0)
c = Client(qmp)
for d in c.get("query-block"):
    assert len(d["inserted"]["dirty-bitmaps"]) == 1
    assert "snapshots" not in d["inserted"]["image"]
END
start_nbdkit control="$sockdir/qmp" images/a
"$python" steps.py "$srcdir/lib" "$IMG" "$sock" "$sockdir/qmp" ""
"$IMG" --control "$sockdir/qmp" backup images/a backups |
  grep '^images/a: incremental backup 6: '
if "$IMG" --control "$sockdir/qmp" backup images/b backups 2> err; then fail "no such disk"; fi
grep 'images/b' err
stop_nbdkit
for f in backups/*.qcow2; do check_clean "$f"; done
check_clean images/a

# A directory; one of the images is not used by a client otherwise.
rm -r backups images/*
for i in a b; do make_image images/$i 8M; done
start_nbdkit control="$sockdir/qmp" dir="$PWD/images"
"$python" steps.py "$srcdir/lib" "$IMG" "$sock" "$sockdir/qmp" b,a
rm -r backups
"$IMG" --control "$sockdir/qmp" backup a backups
"$IMG" --control "$sockdir/qmp" backup --nbd "nbd+unix:///?socket=$sock" a backups |
  grep '^a: incremental backup 2: 0 B in'
uri="nbd+unix:///a?socket=$sock" hold_connection
"$IMG" --control "$sockdir/qmp" backup images/a backups |
  grep '^images/a: incremental backup 3: 0 B in'
drop_connections
if "$IMG" --control "$sockdir/qmp" backup images/b backups 2> err; then fail "not in use"; fi
grep 'images/b' err
stop_nbdkit
for i in a b; do check_clean images/$i; done
