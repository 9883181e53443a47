#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With bitmap-durable=true, kill -9 while a job runs (a stream, a commit of a layer below or of
# the image on top, a mirror), or after a stream has completed, leaves bitmaps that QEMU finds
# valid, with all that was written; also in images that are encrypted, or have an external data
# file, and in those of a directory.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version

d="$tmp/images"
# make_images OPTION...: of the one on top
make_images ()
{
  rm -rf "$d"
  mkdir "$d"
  qemu-img create -q -f qcow2 "$d/base" 64M
  qemu-io -f qcow2 -c 'write -P 1 0 20M' "$d/base"
  qemu-img create -q -f qcow2 -b base -F qcow2 "$d/mid"
  qemu-io -f qcow2 -c 'write -P 2 10M 20M' "$d/mid"
  qemu-img create -q -f qcow2 -b mid -F qcow2 --object secret,id=s,data=abc "$@" "$d/top"
  qemu-img bitmap --add -g 64k --object secret,id=s,data=abc --image-opts "$(opened)" b
  # (If a bitmap is empty, the first mark is one for all of the disk.)
  qemu-io --object secret,id=s,data=abc --image-opts -c 'write -P 3 60M 64k' "$(opened)"
  qemu-img create -q -f qcow2 "$d/target" 64M
}
# How QEMU opens it.
opened ()
{
  if [ "$kind" = luks ]; then
    echo "driver=qcow2,file.filename=$d/top,encrypt.key-secret=s"
  else
    echo "driver=qcow2,file.filename=$d/top"
  fi
}

cat > "$tmp/run.py" <<'PY'
import random, sys
from qmp import Client, connect
qmp, sock, job, device, target, wanted = sys.argv[1:]
c = Client(qmp)
h = connect(sock, device if device == "top" else "")
written = []

def write(n=10):
    for _ in range(n):
        at = random.randrange(256) * 65536
        written.append(at)
        if random.randrange(3):
            h.pwrite(b"x" * 4096, at + 8192)
        else:
            h.zero(65536, at)

write()
slow = dict(job_id="j", device=device, speed=1)
if job == "stream":
    c.get("block-stream", **slow)
elif job == "streamed":
    c.get("block-stream", job_id="j", device=device)
    write()
    c.until_event("BLOCK_JOB_COMPLETED")
elif job == "commit":
    c.get("block-commit", top_node=device + "/node1" if device == "top" else "node1", **slow)
elif job == "active":
    c.get("block-commit", **slow)
elif job == "mirror":
    c.get("blockdev-add", driver="qcow2", node_name="t",
          file={"driver": "file", "filename": target})
    c.get("blockdev-mirror", target="t", sync="full", **slow)
write()
if job not in ("none", "streamed"):
    assert [j["status"] for j in c.get("query-jobs")] == ["running"]
with open(wanted, "w") as f:
    print(*written, file=f)
PY

cat > "$tmp/judge.py" <<'PY'
import sys
written = set(map(int, open(sys.argv[1]).read().split()))
marked, n = set(), 0
for line in sys.stdin:
    at, length, dirty = map(int, line.split()[:3])
    if dirty:
        marked.update(range(at, at + length, 65536))
print(len(written), "written,", len(marked), "marked")
assert written <= marked, sorted(written - marked)
assert len(marked) < 1024
PY

for run in plain:commit plain:active plain:stream plain:streamed plain:mirror \
  luks:none luks:stream luks:streamed data:none data:commit data:mirror \
  dir:none dir:stream dir:commit; do
  kind=${run%:*} job=${run#*:} device=disk
  case $kind in
    luks) make_images -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10
          server=("$d/top" passphrase=abc) ;;
    data) make_images -o "data_file=$d/data"
          server=("$d/top" data-file=follow) ;;
    dir)  make_images
          device=top server=(dir="$d") ;;
    *)    make_images
          server=("$d/top") ;;
  esac
  start_nbdkit control="$sockdir/qmp" bitmap-durable=true "${server[@]}"
  # (When the last writer leaves, bitmaps are stored as they are.)
  if [ "$kind" = dir ]; then uri="nbd+unix:///top?socket=$sock"; fi
  hold_connection
  PYTHONPATH="$srcdir/lib" "$python" "$tmp/run.py" "$sockdir/qmp" "$sock" "$job" $device \
    "$d/target" "$tmp/wanted"
  kill9_nbdkit main
  drop_connections
  qemu-img info --image-opts --object secret,id=s,data=abc "$(opened)" > "$tmp/info"
  if grep -E 'in-use|corrupt: true' "$tmp/info"; then fail "$run: it is in use"; fi
  echo "$run:"
  nbdinfo --map=qemu:dirty-bitmap:b -- [ qemu-nbd -r --object secret,id=s,data=abc \
    -B b --image-opts "$(opened)" ] | "$python" "$tmp/judge.py" "$tmp/wanted"
done
