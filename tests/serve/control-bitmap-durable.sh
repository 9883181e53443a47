#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With bitmap-durable=true, bitmaps are begun, disabled, merged and cleared in transactions,
# while clients write.  When the server is then killed, QEMU finds all of them valid: each
# has every block that was written while it recorded; and those that are disabled have no
# others, because they were stored as they are.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version

img="$tmp/a.qcow2"
make_image "$img" 64M
start_nbdkit control="$sockdir/qmp" bitmap-durable=true checkpoint-interval=1 "$img"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" "$tmp/expected" <<'PY'
import random
import sys
import threading
import qmp

BLOCK, BLOCKS, ROUNDS = 65536, 1024, 8
c = qmp.Client(sys.argv[1])
node = {"node": "node0"}

class Writer(threading.Thread):
    """Notes a block before and after it is written."""
    def __init__(self, number):
        super().__init__()
        self.random, self.ends = random.Random(number), False
        self.begun, self.done = [], []
        self.h = qmp.connect(sys.argv[2], "")

    def run(self):
        while not self.ends:
            at = self.random.randrange(BLOCKS)
            self.begun.append(at)
            self.h.pwrite(b"x" * 4096, at * BLOCK)
            self.done.append(at)

writers = [Writer(i) for i in (1, 2, 3)]
expected, possible, start = [], [], [0] * len(writers)
for w in writers:
    w.start()
for i in range(ROUNDS):
    actions = [{"type": "block-dirty-bitmap-add",
                "data": dict(node, name="b%d" % i, persistent=True, granularity=BLOCK)}]
    if i > 0:
        # What was done by now is in the last one.
        actions.append({"type": "block-dirty-bitmap-disable",
                        "data": dict(node, name="b%d" % (i - 1))})
        expected.append({n for w, s in zip(writers, since) for n in w.done[s:]})
    begun = [max(0, len(w.begun) - 1) for w in writers]
    c.get("transaction", actions=actions)
    if i > 0:
        possible.append({n for w, s in zip(writers, start) for n in w.begun[s:]})
    start = begun
    # (What has begun before may be in the one before only, though its answer comes now.)
    since = [len(w.begun) for w in writers]
    while any(len(w.done) < s + 20 for w, s in zip(writers, since)):
        pass
c.get("block-dirty-bitmap-merge", target="b0", bitmaps=["b1"], **node)
c.get("block-dirty-bitmap-clear", name="b2", **node)
for w in writers:
    w.ends = True
for w in writers:
    w.join()
expected.append({n for w, s in zip(writers, since) for n in w.done[s:]})
possible.append(set(range(BLOCKS)))
expected[0] |= expected[1]
possible[0] |= possible[1]
expected[2] = possible[2] = set()
with open(sys.argv[3], "w") as f:
    for i in range(ROUNDS):
        print("b%d" % i, file=f, end=":")
        print(*expected[i], file=f, end=":")
        print(*possible[i], file=f)
PY

kill9_nbdkit main
check_leaks_only "$img"
qemu-img info -f qcow2 "$img" > "$tmp/info"
if grep -E 'in-use|corrupt: true' "$tmp/info"; then fail "something is in use"; fi
while IFS=: read -r name expected possible; do
  marked "$img" "$name" > "$tmp/marked"
  "$python" - "$tmp/marked" "$name" "$expected" "$possible" <<'PY'
import sys
found = set()
for line in open(sys.argv[1]):
    at, length = map(int, line.split())
    found.update(range(at // 65536, (at + length) // 65536))
expected, possible = (set(map(int, s.split())) for s in sys.argv[3:])
print(sys.argv[2], len(expected), "written,", len(found), "marked")
assert expected <= found, sorted(expected - found)
assert found <= possible, sorted(found - possible)
PY
done < "$tmp/expected"
