#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image can lie over at most so many files: the backup that would exceed that is a full one by
# itself, and the one before it can still be restored.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
cd ours

make_image a.qcow2 1M
io a.qcow2 'write -P 1 0 512k'
for _ in 1 2; do img backup -q a.qcow2 backups; done
# Copies of the second one, each over the one before, up to one less than the longest chain.
"$python" - <<'END'
import json
m = json.load(open("backups/manifest.json"))
data = open("backups/000002.qcow2", "rb").read()
assert data.count(b"000001.qcow2") == 1
generations = m["generations"]
for n in range(3, 4096):
    g = dict(generations[-1], number=n, file="%06d.qcow2" % n, backing="%06d.qcow2" % (n - 1))
    generations.append(g)
    with open("backups/" + g["file"], "wb") as f:
        f.write(data.replace(b"000001.qcow2", g["backing"].encode()))
json.dump(m, open("backups/manifest.json", "w"))
END
io a.qcow2 'write -P 2 64k 64k'
img backup a.qcow2 backups | grep 'incremental backup 4096'
img restore -q backups x.raw
qemu-img compare -f qcow2 -F raw a.qcow2 x.raw
img backup a.qcow2 backups | grep 'full backup 4097: .*lies over too many files'
img restore -q backups x.raw
qemu-img compare -f qcow2 -F raw a.qcow2 x.raw
