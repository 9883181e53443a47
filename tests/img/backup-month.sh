#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A month of backups: each day a disk is written at random and backed up, in use or at rest, and
# on many days the server or the backup is killed at a random instant, or both are, before,
# during or after the backup.  Old generations are merged.  Whatever is in the repository shows
# the disk of its day, for qemu-img and for restore; and as bitmaps are durable, nothing but the
# first backup is a full one that need not be.
#
# Environment: SEED, DAYS.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"

make_image disk.qcow2 16M
"$python" - "$srcdir/lib" "$IMG" "$NBDKIT" "$PLUGIN" "$sockdir" "$SEED" "${DAYS:-30}" <<'END'
import os, random, socket, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from backups import Backups
from qmp import connect
img, nbdkit, plugin, socks, seed, days = sys.argv[2:]
random.seed(int(seed))
image, nbd, qmp = os.path.abspath("disk.qcow2"), socks + "/nbd", socks + "/qmp"
size = 16 << 20
model = bytearray(size)
backups = Backups(img, "backups")
server = h = None
kinds = {"full": 0, "incremental": 0}
killed = {"server": 0, "backup": 0}

def is_up():
    try:
        for path in qmp, nbd:
            socket.socket(socket.AF_UNIX).connect(path)
        return True
    except OSError:
        assert server.poll() is None
        return False

def start():
    global server, h
    if os.path.exists(nbd):
        os.unlink(nbd)
    # (nbdkit before 1.34 aborts if a client with requests in flight is killed, but for -t 1.)
    server = subprocess.Popen([nbdkit, "-f", "-t1", "--exit-with-parent", "-U", nbd, plugin, image,
                               "control=" + qmp, "bitmap-durable=true"])
    while not is_up():
        time.sleep(0.01)
    h = connect(nbd)

def kill_server():
    global h
    server.kill()
    server.wait()
    h = None
    killed["server"] += 1

def load():
    """Everything that is written is flushed."""
    for _ in range(random.randrange(1, 40)):
        n = random.choice((512, 4096, 65536, 300000, random.randrange(1, 100000)))
        at = random.randrange(size - n)
        if random.randrange(4):
            data = random.randbytes(min(n, 100)) * (n // min(n, 100) + 1)
            h.pwrite(data[:n], at)
            model[at:at + n] = data[:n]
        else:
            h.zero(n, at)
            model[at:at + n] = bytes(n)
    h.flush()

def backup(*options, expected=True):
    if server:
        command = [img, "--control", qmp, "backup", *options, "disk", "backups"]
    else:
        command = [img, "backup", *options, image, "backups"]
    p = subprocess.Popen(command)
    victim = None if expected else random.choice(("server", "backup", "both"))
    if victim:
        time.sleep(random.random() * 0.1)
    if victim in ("backup", "both"):
        p.kill()
    if victim in ("server", "both"):
        kill_server()
        # (The rest of the backup could wait for the next one.)
        start()
    status = p.wait()
    killed["backup"] += status == -9
    assert status == 0 or not expected, status
    before = len(backups.models)
    newest = backups.note(model)
    assert len(backups.models) > before or not expected
    if len(backups.models) > before:
        kinds[newest["kind"]] += 1
        # (A backup that was killed left nothing that would need a full one.)
        assert newest["kind"] == ("full" if before == 0 or "--full" in options
                                  else "incremental"), newest

start()
for day in range(1, int(days) + 1):
    load()
    if random.randrange(6) == 0:
        kill_server()
        start()
    if random.randrange(2):
        backup(*random.choice(((), ("--verify",), ("-c",), ("--keep", "3"))), expected=False)
        load()
    if random.randrange(5) == 0:        # at rest
        h = None
        server.terminate()
        assert server.wait() == 0
        server = None
    options = [] if random.randrange(3) else ["--keep", str(random.randrange(2, 9))]
    options += random.choice(([], [], ["-c"], ["--full"] if day % 7 == 0 else [], ["-Oraw"]))
    backup(*options)
    if server is None:
        start()
    if day % 5 == 0:
        backups.judge()
backups.judge()
h = None
server.terminate()
assert server.wait() == 0
print(kinds, killed)
assert kinds["incremental"] > kinds["full"] and min(killed.values()) > 0, (kinds, killed)
END
check_clean disk.qcow2
[ "$(qemu-img info disk.qcow2 | grep -c 'name: backup-')" = 1 ]
