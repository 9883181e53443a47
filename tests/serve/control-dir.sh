#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# One control socket for a directory: names of images are devices.  Where nothing may be
# changed (untrusted=true, snapshot=), the socket only answers questions.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

mkdir "$tmp/images"
for i in a b; do make_image "$tmp/images/$i" 8M; done
cp "$tmp/images/a" "$tmp/locked"
# Its clusters can have one reference only.
make_image "$tmp/images/one" 8M refcount_bits=1
qemu-io -f qcow2 -c 'write 0 64k' "$tmp/images/one"
start_nbdkit control="$sockdir/qmp" dir="$tmp/images"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" <<'PY'
import itertools
import sys
import threading
import nbd
from qmp import Client

c = Client(sys.argv[1])
h = nbd.NBD()
h.set_export_name("a")
h.connect_unix(sys.argv[2])

def names(query, key):
    return sorted(o[key] for o in c.get(query))

assert names("query-named-block-nodes", "node-name") == ["a/node0"]
assert names("query-block", "device") == ["a"]
assert names("query-block-exports", "id") == ["a"]
create = "blockdev-snapshot-internal-sync"
for i, device in enumerate(("a", "a/node0", "b", "b/node0")):
    c.get(create, device=device, name="s%d" % i)
    c.get("block-dirty-bitmap-add", node=device, name="b%d" % i, persistent=True)
for wrong in "disk", "node0", "c", "a/node1", "a/", "/", "", "../locked", "a/node00", ".":
    c.refuses("Cannot find device='%s' nor node-name='%s'" % (wrong, wrong), create,
              device=wrong, name="x")
add = [{"type": "block-dirty-bitmap-add",
        "data": {"node": node, "name": "t", "persistent": True}} for node in ("a", "b")]
add[1]["data"]["name"] = "b2"
c.refuses("Bitmap already exists: b2", "transaction", actions=add)
c.refuses("Node 'c' not found", "transaction", actions=add[:1] + [
    {"type": "block-dirty-bitmap-clear", "data": {"node": "c", "name": "t"}}])
c.refuses("Node 'a' belongs to another disk", "transaction", actions=[
    {"type": "block-dirty-bitmap-merge",
     "data": {"node": "b", "target": "b2", "bitmaps": [{"node": "a", "name": "b0"}]}}])
assert not any(b["name"] == "t" for b in c.node()["dirty-bitmaps"])

# Both disks at one instant, while clients write: first to one, then to the other.
clients = [h, nbd.NBD()]
clients[1].set_export_name("b")
clients[1].connect_unix(sys.argv[2])
stop = threading.Event()

def write():
    for n in itertools.count(1):
        for client in clients:
            client.pwrite(n.to_bytes(8, "big") * 64, 0)
        if stop.is_set():
            return

writer = threading.Thread(target=write)
writer.start()
for i in range(20):
    c.get("transaction", actions=[
        {"type": create, "data": {"device": device, "name": "i%d" % i}}
        for device in ("b", "a")])
stop.set()
writer.join()
seen = []
for i in range(20):
    numbers = []
    for device in "a", "b":
        g = nbd.NBD()
        g.set_export_name("%s/i%d" % (device, i))
        g.connect_unix(sys.argv[2])
        numbers.append(int.from_bytes(g.pread(8, 0), "big"))
        g.shutdown()
    assert numbers[0] - 1 <= numbers[1] <= numbers[0], numbers
    seen.append(numbers[0])
assert len(set(seen)) > 1
clients[1].shutdown()
both = [{"type": create, "data": {"device": device, "name": "late"}}
        for device in ("one", "a")]
c.refuses("refcount", "transaction", actions=both)
c.refuses("The disks before 'one' were changed, but not that one: ", "transaction",
          actions=both[::-1])
c.refuses("Snapshot with name 'late' already exists on device 'a'", create, device="a",
          name="late")
c.get("transaction", actions=add[:1])
g = nbd.NBD()
g.set_export_name("a/s1")
g.connect_unix(sys.argv[2])
PY
stop_nbdkit
for i in a b; do qemu-img check "$tmp/images/$i"; done
for i in a b; do qemu-img info --output=json "$tmp/images/$i" > "$tmp/$i.info"; done
grep -q '"t"' "$tmp/a.info"
[ "$(grep -c '"t"' "$tmp/b.info")" = 0 ]
[ "$(qemu-img snapshot -l "$tmp/images/b" | grep -c ' s[23] ')" = 2 ]

only_answers ()
{
  local why="$1"
  shift

  start_nbdkit control="$sockdir/qmp" "$@"
  PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$why" <<'PY'
import sys
from qmp import Client

c = Client(sys.argv[1])
assert c.node()["ro"]
c.refuses(sys.argv[2], "block-dirty-bitmap-add", node="node0", name="x", persistent=True)
c.refuses(sys.argv[2], "block_resize", node_name="node0", size=1 << 30)
c.refuses(sys.argv[2], "transaction", actions=[])
c.refuses("is missing", "block-dirty-bitmap-add", node="node0")
c.refuses(sys.argv[2], "blockdev-add", driver="raw", node_name="r", file="f")
c.refuses("has not been found", "device_add")
PY
  stop_nbdkit
}

before="$(fingerprint "$tmp/images/a")"
only_answers "the image is untrusted" untrusted=true "$tmp/images/a"
only_answers "a snapshot is served" snapshot=s1 "$tmp/images/a"
[ "$before" = "$(fingerprint "$tmp/images/a")" ]
