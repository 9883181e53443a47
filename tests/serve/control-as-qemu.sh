#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The control socket answers as qemu-storage-daemon does: the same script of commands,
# right and wrong, gets the same answers and errors from both.  Where the image differs
# (an id, a time), the keys are the same.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version

make_one ()
{
  mkdir "$tmp/$1"
  qemu-img create -q -f qcow2 "$tmp/$1/base.qcow2" 8M
  qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 "$tmp/$1/a.qcow2"
  qemu-io -f qcow2 -c 'write -P 7 1M 1M' "$tmp/$1/a.qcow2"
  qemu-img bitmap --add "$tmp/$1/a.qcow2" b0
  qemu-img snapshot -c s0 "$tmp/$1/a.qcow2"
}
make_one ours
make_one theirs

start_both a.qcow2 node0

manual="$srcdir/../plugin/nbdkit-qcow2-control.pod"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" "$manual" <<'PY'
import re, sys
from qmp import Both

servers = Both(*sys.argv[1:3], negotiate=False)
ours, theirs = servers.clients
both = servers.ask

def same(text):
    """Both answer this in the same way."""
    def answer(c):
        c.say(text)
        return c.answer()
    servers.compare(text[:300], answer)

# The protocol.
assert set(ours.greeting["QMP"]) == {"version", "capabilities"}
both("query-version")
both("qmp_capabilities", x=1)
both("qmp_capabilities")
both("qmp_capabilities")
for text in ('{"execute": "nonsense", "id": {"a": [1, "b", null]}}',
             '{"execute": "query-jobs", "foo": 1, "id": 3}', '{"id": 3}', '[]', '3 ',
             '"text" ', 'null ', '{"execute": 3}', '{"execute": ""}',
             '{"execute": "query-jobs", "arguments": []}',
             '{"execute": "query-jobs", "arguments": null}',
             '{"execute": "query-jobs", "execute": "query-jobs"}',
             "{'execute': 'query-jobs', 'id': 'a\"b\\'c'}", '}', ']', ',', ':', '{]',
             '{"execute":"query-jobs","id":"\\u00e9\\ud83d\\ude00\\u0007"}'):
    same(text)
# (These two answer a command at once, whatever else is on the line.)
for c in ours, theirs:
    c.say('{"execute":"query-jobs","id":1}{"execute":"query-jobs","id":2} ')
    assert [c.answer()["id"], c.answer()["id"]] == [1, 2]

# Queries.
for query in "query-block-jobs", "query-jobs":
    both(query)
    both(query, x=1)
both("query-named-block-nodes", flat=1)
both("query-named-block-nodes", foo=True)
both("query-blockstats", query_nodes=1)
both("query-blockstats", foo=True)

# QEMU counts no requests of nodes; some keys are there only if they are not 0.
def keys_of(c):
    one = [n for n in c.get("query-blockstats", query_nodes=True)
           if n["node-name"] == "node0"][0]
    return set(one["stats"]), set(one["parent"]["stats"]), one["stats"]["rd_bytes"]
assert keys_of(ours) == keys_of(theirs), (keys_of(ours), keys_of(theirs))

def node_of(c, name, **arguments):
    nodes = c.get("query-named-block-nodes", **arguments)
    return [n for n in nodes if n["node-name"] == name][0]

# (QEMU stores bitmaps at the end.)
differs = {"file", "backing_file", "filename", "full-backing-filename", "actual-size",
           "date-sec", "date-nsec", "vm-clock-sec", "vm-clock-nsec", "bitmaps"}

def compare_nodes(**arguments):
    """We say at least what QEMU says, and the same, but for what differs anyway."""
    def agree(a, b, where):
        if where.rsplit(".")[-1] in differs:
            return
        if isinstance(b, dict):
            for key in b:
                assert key in a, (where, key)
                agree(a[key], b[key], where + "." + key)
        elif isinstance(b, list):
            assert len(a) == len(b), (where, a, b)
            by_name = lambda o: str(o.get("name"))
            for x, y in zip(sorted(a, key=by_name), sorted(b, key=by_name)):
                agree(x, y, where + "[]")
        else:
            assert a == b, (where, a, b)
    agree(node_of(ours, "node0", **arguments), node_of(theirs, "node0", **arguments), "")

compare_nodes()
compare_nodes(flat=True)

# Bitmaps.
add = "block-dirty-bitmap-add"
both(add)
both(add, node="node0")
both(add, name="x")
both(add, node=1, name="x")
both(add, node="node0", name="x", foo=1)
both(add, node="nope", name="x")
both(add, node="node0", name="b0", persistent=True)
both(add, node="node0", name="x", persistent="yes")
for granularity in 1000, 256, 0, 1 << 32, -1, "512", 512.0:
    both(add, node="node0", name="x", persistent=True, granularity=granularity)
both(add, node="node0", name="", persistent=True)
both(add, node="node0", name="n" * 1024, persistent=True)
both(add, node="node0", name="n" * 1024)
both(add, node="node0", name="n" * 1023, persistent=True)
both(add, node="node0", name="x", persistent=True, granularity=1 << 31)
both(add, node="node0", name="b1", persistent=True, disabled=True)
for what in "remove", "clear", "enable", "disable":
    command = "block-dirty-bitmap-" + what
    both(command)
    both(command, node="node0")
    both(command, name="b1")
    both(command, node="", name="b1")
    both(command, node="nope", name="b1")
    both(command, node="node0", name="nope")
    both(command, node="node0", name=[])
    both(command, node="node0", name="b1", foo=2)
both("block-dirty-bitmap-enable", node="node0", name="b1")
both("block-dirty-bitmap-enable", node="node0", name="b1")
both("block-dirty-bitmap-disable", node="node0", name="b1")
both("block-dirty-bitmap-clear", node="node0", name="b1")
merge = "block-dirty-bitmap-merge"
both(merge)
both(merge, node="node0", target="b1")
both(merge, node="node0", target="nope", bitmaps=["b0"])
both(merge, node="nope", target="b1", bitmaps=["b0"])
both(merge, node="node0", target="b1", bitmaps=["nope"])
both(merge, node="node0", target="b1", bitmaps=[{"node": "nope", "name": "b0"}])
both(merge, node="node0", target="b1", bitmaps=[{"node": "node0"}])
both(merge, node="node0", target="b1",
     bitmaps=["b0", {"node": "node0", "name": "b0", "x": 1}])
both(merge, node="node0", target="b1", bitmaps="b0")
both(merge, node="node0", target=3, bitmaps=["b0"])
both(merge, node="node0", target="b1", bitmaps=["b0", {"node": "node0", "name": "x"}])
both(merge, node="node0", target="b1", bitmaps=["b1"])
both("block-dirty-bitmap-remove", node="node0", name="b1")

# Snapshots.
create = "blockdev-snapshot-internal-sync"
delete = "blockdev-snapshot-delete-internal-sync"
both(create)
both(create, device="node0")
both(create, name="x")
both(create, device="nope", name="x")
both(create, device="node0", name="s0")
both(create, device="node0", name="")
both(create, device="node0", name="s1", id="1")
both(create, device=1, name="s1")
both(create, device="node0", name="s1")
both(delete, device="node0")
both(delete, device="nope", name="s1")
both(delete, device="node0", name="nope")
both(delete, device="node0", name="")
both(delete, device="node0", id="99")
both(delete, device="node0", id="99", name="s1")
both(delete, device="node0", id=1)
both(delete, device="node0", name="s1", zz=1)
compare_nodes()
for c in ours, theirs:
    info = c.get(delete, device="node0", name="s1")
    assert info["id"] == "2" and info["name"] == "s1" and \
        {"vm-state-size", "date-sec", "date-nsec", "vm-clock-sec", "vm-clock-nsec"} \
        < set(info), info
    assert c.get(delete, device="node0", id="1", name="s0")["name"] == "s0"

# External ones.  (QEMU replaces files that are there; ours does not.)
overlay = "blockdev-snapshot-sync"
both(overlay)
both(overlay, device="node0")
both(overlay, device=1, snapshot_file="/n")
both(overlay, snapshot_file="/n", format="qcow2")
both(overlay, device="nope", snapshot_file="/n", format="qcow2")
both(overlay, node_name="nope", snapshot_file="/n", format="qcow2")
both(overlay, node_name="node0", snapshot_file="/n", format="qcow2")
both(overlay, device="node0", snapshot_file="/n", mode="other")
both(overlay, node_name="node0", snapshot_node_name="node0", snapshot_file="/n")
both(overlay, device="node0", snapshot_file="/n", foo=1)

# Transactions.
t = "transaction"
both(t)
both(t, actions=[])
both(t, actions=[1])
both(t, actions=[{}])
both(t, actions={"a": 1})
both(t, actions=[{"type": "foo", "data": {}}])
both(t, actions=[{"type": 3, "data": {}}])
both(t, actions=[{"data": {}}])
both(t, actions=[{"type": add}])
both(t, actions=[{"type": "abort", "data": {}}])
both(t, actions=[{"type": "abort", "data": {"x": 1}}])
both(t, actions=[], properties={"x": 1})
both(t, actions=[], properties=[])
both(t, actions=[], properties={"completion-mode": "foo"})
both(t, actions=[], properties={"completion-mode": "individual"})

def action(what, name, **more):
    return {"type": "block-dirty-bitmap-" + what,
            "data": {"node": "node0", "name": name, **more}}

both(t, actions=[{**action("add", "t0"), "x": 1}])
both(t, actions=[action("add", "t0", foo=True)])
both(t, actions=[action("clear", "b0"),
                 {"type": merge, "data": {"node": "node0", "target": "t1",
                                          "bitmaps": ["b0", {"node": "node0"}]}}])
both(t, actions=[action("add", "t1", persistent=True), action("disable", "t1"),
                 action("clear", "b0")])
both(t, actions=[action("add", "t2", persistent=True), action("enable", "nope")][:1])
both(t, actions=[action("add", "t3", persistent=True), {"type": "abort", "data": {}}])
both(t, actions=[action("add", "t3", persistent=True),
                 {"type": create, "data": {"device": "node0", "name": "then"}},
                 action("disable", "b0")])
both(t, actions=[action("enable", "b0"),
                 {"type": create, "data": {"device": "node0", "name": "then"}}])
both(t, actions=[{"type": create, "data": {"device": "node0", "name": "later"}},
                 action("clear", "nope")])
both(t, actions=[action("add", "t4", persistent=True), action("clear", "nope")])
both(t, actions=[action("clear", "t4")])
compare_nodes()

# Other commands.
both("block_resize")
both("block_resize", size=1 << 23)
both("block_resize", device="nope", size="a")
both("block_resize", device="nope", size=1 << 23)
both("block_resize", node_name="nope", size=1 << 23)
both("block_resize", node_name="node0")
both("block_resize", node_name="node0", size=-1)
both("block_resize", node_name="node0", size=1.5)
change = "change-backing-file"
both(change)
both(change, device="node0")
both(change, device="node0", image_node_name="node0")
both(change, device="node0", image_node_name="node0", backing_file=3)
both(change, device="nope", image_node_name="node0", backing_file="base.qcow2")
both(change, device="node0", image_node_name="nope", backing_file="base.qcow2")
both(change, device="node0", image_node_name="node0", backing_file="x" * 1024)
both(change, device="node0", image_node_name="node0", backing_file="./base.qcow2")
compare_nodes()
both("quit", x=1)
print(servers.count, "commands")

# Each command that we name is there, and QEMU has it, too (but for one of our own).
names = [{c["name"] for c in k.get("query-commands")} for k in (ours, theirs)]
assert names[0] - names[1] == {"x-query-nbd-export", "x-query-statistics"}, \
    names[0] - names[1]
# The manual has it, too.
with open(sys.argv[3]) as f:
    said = set(re.findall(r"B<([a-z_-]+)>", f.read()))
assert names[0] - said == {"qmp_capabilities"}, names[0] - said
assert ours.get("quit") == {}
PY
await_end "$nbdkit_pid"
end_storage_daemon
for i in ours theirs; do qemu-img check "$tmp/$i/a.qcow2"; done
