#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With dir=, a disk moves from an image on top back to its own (block-commit) while clients write
# it, and to another image (blockdev-mirror).  Its name means that image as long as the server runs,
# also when all clients have left; nodes are numbered from the top, and the one that was
# added is gone; another name of the image is refused meanwhile; the log names it.  After the
# next start the old names cannot be written, and the new one has all that was written; so has
# the old name, once the image was renamed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

d="$tmp/d"
mkdir "$d"
make_image "$d/base" 8M
io "$d/base" 'write -P 5 0 4M'
qemu-img create -q -f qcow2 -b base -F qcow2 "$d/a"
io "$d/a" 'write -P 6 1M 1M' 'write -z 2M 64k'
make_image "$d/new" 8M cluster_size=4k
for name in other else ü moved $'line\nend'; do make_image "$d/$name" 8M; done
qemu-img create -q -f qcow2 -b base -F qcow2 "$d/c"
qemu-img convert -f qcow2 -O raw "$d/a" "$tmp/model.raw"
start_nbdkit control="$sockdir/qmp" log="$tmp/events" dir="$d"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$sock" "$(export_uri a)" "$d" \
  "$tmp/model.raw" <<'PY'
import sys
import nbd
from qmp import Client, Writers, connect

qmp, sock, uri, d, model = sys.argv[1:]
c = Client(qmp)

def nodes():
    return [(n["node-name"], n["file"]) for n in c.get("query-named-block-nodes")]

def cannot_open(name):
    try:
        connect(sock, name)
    except nbd.Error:
        return
    raise SystemExit("%s was opened, too" % name)

def again(writers):
    """All clients leave, and others come."""
    writers.end()
    for h in writers.handles:
        h.shutdown()
    return Writers(uri, model).start()

def completes(command, device="a", **arguments):
    c.get(command, job_id="j", device=device, **arguments)
    c.until_event("BLOCK_JOB_READY")
    c.get("job-complete", id="j")
    done = c.until_event("BLOCK_JOB_COMPLETED")[-1]["data"]
    assert "error" not in done, done
    c.until_status("null")

def add(file):
    c.get("blockdev-add", driver="qcow2", node_name="n",
          file={"driver": "file", "filename": "%s/%s" % (d, file)})

writers = Writers(uri, model).start()
c.get("blockdev-snapshot-sync", device="a", snapshot_file=d + "/top")
writers = again(writers)
assert nodes() == [("a/node%u" % i, d + "/" + file)
                   for i, file in enumerate(("top", "a", "base"))], nodes()
completes("block-commit", base=d + "/a")
assert nodes() == [("a/node%u" % i, d + "/" + file) for i, file in enumerate(("a", "base"))]
writers = again(writers)

add("new")
completes("blockdev-mirror", target="n", sync="full")
assert nodes() == [("a/node0", d + "/new")], nodes()
c.refuses("Failed to find node", "blockdev-del", node_name="n")
cannot_open("new")
other = connect(sock, "other")
other.pwrite(b"o" * 512, 0)
writers = again(writers)
cannot_open("new")
assert sorted(b["device"] for b in c.get("query-block")) == ["a", "other"]
other.shutdown()

# The same without a snapshot before: without clients, it would be closed.
def stays(device):
    for i in range(100):
        h = connect(sock, device)
        h.pwrite(bytes([i]) * 512, 512)
        assert h.pread(512, 0) == b"o" * 512
        h.shutdown()

add("else")
completes("blockdev-mirror", device="other", target="n", sync="full")
stays("other")
h = connect(sock, "c")
h.pwrite(b"o" * 512, 0)
h.shutdown()
completes("block-commit", device="c")
assert [f for n, f in nodes() if n == "c/node0"] == [d + "/base"], nodes()
stays("c")

# The name of a file need not be ASCII.
h = connect(sock, "\u00fc")
c.get("blockdev-snapshot-sync", device="\u00fc", snapshot_file=d + "/u")
h.pwrite(b"u" * 512, 0)
h.shutdown()

# A header cannot have the name of this one.
h = connect(sock, "line\nend")
h.pwrite(b"m" * 512, 0)
add("moved")
completes("blockdev-mirror", device="line\nend", target="n", sync="full")
h.shutdown()
writers = again(writers)
writers.end()
PY
stop_nbdkit
for name in a top; do
  [ "$(grep -c "has moved here from $d/$name\"" "$tmp/events")" = 1 ]
done
grep -E "image=\"$d/new\" job=\"?j\"? .*completed" "$tmp/events"
for image in base a c new other else top ü u moved $'line\nend'; do check_clean "$d/$image"; done
qemu-img compare -f qcow2 -F raw "$d/new" "$tmp/model.raw"

start_nbdkit dir="$d"
while read -r name to; do
  uri="$(export_uri "$name")" refused_connection "$d/$name: is not written: .* moved to $d/$to:"
done <<'END'
a new
top new
other else
c base
END
for name in %C3%BC line%0Aend; do
  if nbdinfo --size "$(export_uri $name)"; then fail "an old image was served"; fi
done
grep "$d/ü: is not written: the disk has gone on in $d/u," "$tmp/main.log"
model verify "$(export_uri new)" "$tmp/model.raw"
uri="$(export_uri new)" nbdsh_run -c 'h.pwrite(h.pread(512, 0), 0)'
stop_nbdkit
mv "$d/new" "$d/a"
start_nbdkit dir="$d"
model verify "$(export_uri a)" "$tmp/model.raw"
uri="$(export_uri a)" nbdsh_run -c 'h.pwrite(h.pread(512, 0), 0)'
stop_nbdkit
check_clean "$d/a"
