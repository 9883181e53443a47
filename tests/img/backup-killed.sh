#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A backup that is killed at any system call by which it changes something, of the image, of
# the repository or in the server, loses no generation, and leaves none that is wrong: the next
# backup is incremental, and all generations show the disk as it was.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"
requires strace -f -e trace=pwrite64 -e inject=pwrite64:signal=KILL:when=1 true

cat > steps.py <<'END'
import os, random, subprocess, sys
sys.path.insert(0, sys.argv[1])
from backups import Backups
from qmp import Client, connect
img, image, sock, qmp, seed, step = sys.argv[2:]
random.seed(int(seed))
step = int(step)
live = sock != ""
# At rest, the image is changed, too.
calls = "sendto linkat renameat unlink fdatasync fsync" if live else \
    "pwrite64 pwritev2 linkat renameat unlink fdatasync fsync fallocate ftruncate"
size = 4 << 20
model = bytearray(size)
backups = Backups(img, "backups")
command = [img] + (["--control", qmp, "backup", "disk"] if live else ["backup", image])
command += ["--keep", "3"]

def change():
    for _ in range(4):
        n = random.randrange(1, 40000)
        at = random.randrange(size - n)
        data = random.randbytes(1) * n if random.randrange(3) else bytes(n)
        model[at:at + n] = data
        if live:
            h.pwrite(data, at)
        else:
            subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write -P %d %d %d" %
                                   (data[0], at, n), image], stdout=subprocess.DEVNULL)

if live:
    h = connect(sock)
change()
subprocess.check_call(command + ["backups"])
backups.note(model)
killed = 0
for call in calls.split():
    n = 1 + random.randrange(step)
    while True:
        change()
        status = subprocess.call(["strace", "-f", "-qq", "-o", "/dev/null", "-e",
                                  "trace=" + call, "-e",
                                  "inject=%s:signal=KILL:when=%d" % (call, n)] +
                                 command + ["backups"])
        made = len(backups.models)
        backups.note(model)
        assert status in (-9, 137) or (status == 0 and len(backups.models) == made + 1), status
        if status == 0:
            break
        killed += 1
        backups.judge()
        change()
        subprocess.check_call(command + ["-q", "backups"])
        newest = backups.note(model)
        assert newest["kind"] == "incremental", (call, n)
        n += 1 + random.randrange(2 * step - 1)
backups.judge()
left = {g["file"] for g in backups.list()} | {"manifest.json", ".lock"}
assert set(os.listdir("backups")) == left, os.listdir("backups")
print("killed at", killed, "places")
assert killed >= 5
END
long_suite && step=1 || step=4
make_image a.qcow2 4M
"$python" steps.py "$srcdir/lib" "$IMG" a.qcow2 "" "" "$RANDOM" "$step"
check_clean a.qcow2
[ "$(qemu-img info a.qcow2 | grep -c 'name: backup-')" = 1 ]
rm -r backups
make_image a.qcow2 4M
# (nbdkit before 1.34 aborts if a client with requests in flight is killed, but for -t 1.)
start_nbdkit -t 1 -- control="$sockdir/qmp" a.qcow2
"$python" steps.py "$srcdir/lib" "$IMG" a.qcow2 "$sock" "$sockdir/qmp" "$RANDOM" "$step"
stop_nbdkit
check_clean a.qcow2
[ "$(qemu-img info a.qcow2 | grep -c 'name: backup-')" = 1 ]
