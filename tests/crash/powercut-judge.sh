#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The judge of lab/powercut, on journals that are made up: it counts what a server has
# done wrong, each fault as what it is, accuses nobody who did right, and refuses what it
# cannot judge.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires qemu-img --version
[ -n "$python" ] || python=python3
requires "$python" --version

programs="$abs_top_builddir/tests/powercut"
cd "$tmp"
"$programs/load" --fill fill.raw $((1 << 20))
truncate -s 2M fill.raw
qemu-img convert -f raw -O qcow2 -o cluster_size=4k fill.raw before.qcow2
qemu-img map --output=json before.qcow2 > map.json

cat > story.py <<'PY'
"""Tells a story: the journal of a server that rewrites clusters 0 and 1 of the disk in
place, and of its client."""
import json, shutil, struct, subprocess, sys

WRITE, ZERO, RESIZE, GROW, SYNC, END = 1, 2, 3, 4, 5, 6
CLIENT_WRITE, CLIENT_ZERO, CLIENT_TRIM, CLIENT_FLUSH, CLIENT_END = 32, 33, 34, 35, 36
HOST = json.load(open("map.json"))[0]["offset"]


def contents(c, sector=0, n=8):
    """As ledger_fill makes them."""
    return b"".join(struct.pack("=Q", (c << 32 | s) ^ i << 56)
                    for s in range(sector, sector + n) for i in range(64))


class Story:
    def __init__(self):
        self.journal, self.number = open("journal", "wb"), 0
        shutil.copyfile("before.qcow2", "after.qcow2")
        self.after = open("after.qcow2", "r+b")

    def begin(self, kind, offset=0, data=b"", count=0, result=0, durable=0):
        self.number += 1
        self.journal.write(struct.pack("=IIQQQq", kind, durable, self.number, offset,
                                       len(data) or count, result) + data)
        if kind == WRITE:
            self.after.seek(offset)
            self.after.write(data)
        return self.number, len(data), CLIENT_END if kind >= CLIENT_WRITE else END

    def end(self, begun, result=None):
        number, count, kind = begun
        self.journal.write(struct.pack("=IIQQQq", kind, 0, number, 0, 0,
                                       count if result is None else result))

    def all(self, *args, **more):
        self.end(self.begin(*args, **more))

    def client_write(self, c, durable=0):
        return self.begin(CLIENT_WRITE, 0, count=4096, result=c, durable=durable)

    def judged(self, cuts=60):
        self.journal.close()
        self.after.close()
        done = subprocess.run([sys.argv[1], "journal", "before.qcow2", "after.qcow2", "1",
                               str(cuts), "4"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        print(done.stdout, done.stderr, flush=True)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr


FAULTS = "lost", "snapshot", "older", "torn", "foreign", "trimmed"


def expect(story, *kinds, what=""):
    counts = story.judged()
    found = [k for k in FAULTS if counts[k][0] > 0] + [
        k for k in ("corrupt", "corrupt_later") if counts[k] > 0]
    assert found == list(kinds), (what, found)
    return counts


# Right: the flush syncs what the client wrote.  Several writes, so that some are behind.
s = Story()
for c in 3, 5, 6:
    w = s.client_write(c)
    s.all(WRITE, HOST, contents(c))
    s.end(w)
f = s.begin(CLIENT_FLUSH)
s.all(SYNC)
s.end(f)
w = s.client_write(7)
s.all(WRITE, HOST, contents(7))
s.end(w)
assert expect(s)["behind"] > 0

# The flush does nothing.
s = Story()
w = s.client_write(3)
s.all(WRITE, HOST, contents(3))
s.end(w)
s.all(CLIENT_FLUSH)
assert expect(s, "lost")["lost"][0] >= 1

# The sync begins before the write has ended: what it covers is not certain.
s = Story()
w = s.client_write(3)
write = s.begin(WRITE, HOST, contents(3))
sync = s.begin(SYNC)
s.end(write)
s.end(w)
f = s.begin(CLIENT_FLUSH)
s.end(sync)
s.end(f)
expect(s, "lost")

# The sync fails, and the client is not told.
s = Story()
w = s.client_write(3)
s.all(WRITE, HOST, contents(3))
s.end(w)
f = s.begin(CLIENT_FLUSH)
s.end(s.begin(SYNC), -1)
s.end(f)
expect(s, "lost")

# FUA: with RWF_DSYNC or O_DSYNC, and without.
for durable, faults in (1, ()), (0, ("lost",)):
    s = Story()
    w = s.client_write(3, durable=1)
    s.all(WRITE, HOST, contents(3), durable=durable)
    s.end(w)
    expect(s, *faults, what="fua")

# Bytes of another place; half of a sector; zeros first.
for data, fault in ((contents(3, 8), "foreign"), (b"metadata" * 512, "foreign"),
                    (contents(3)[:256] + contents(2)[256:512], "torn"),
                    (bytes(4096), "older")):
    s = Story()
    w = s.client_write(3)
    s.all(WRITE, HOST, data)
    s.end(w)
    expect(s, fault)

# The same without any request there.
s = Story()
s.all(WRITE, HOST + 4096, contents(3))
expect(s, "lost")

# After a trim nobody knows what is there, but it should not be another's.
for data, faults in ((bytes(4096), ()), (contents(2), ()),
                     (contents(3, 8), ("trimmed",))):
    s = Story()
    t = s.begin(CLIENT_TRIM, 0, count=4096)
    s.all(WRITE, HOST, data)
    s.end(t)
    s.all(CLIENT_FLUSH)
    expect(s, *faults, what="trim")

# Refcounts that become 0.
s = Story()
s.after.seek(48)
s.after.seek(struct.unpack(">Q", s.after.read(8))[0])
block, = struct.unpack(">Q", s.after.read(8))
s.all(WRITE, block, bytes(512))
expect(s, "corrupt")

# What failed has not happened; a write that is cut short has happened in part.
s = Story()
s.end(s.begin(ZERO, HOST, count=4096), -1)
w = s.client_write(2)
s.end(s.begin(WRITE, HOST, contents(2)), 512)
s.end(w)
expect(s)

# A change that is not in the journal; a journal that is cut off.
s = Story()
s.after.seek(HOST)
s.after.write(b"!")
assert "is not complete: offset %d" % HOST in s.judged()
s = Story()
s.all(SYNC)
s.journal.write(b"!")
assert "cut off" in s.judged()
PY
"$python" story.py "$programs/judge"
