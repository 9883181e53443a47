#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# After an external snapshot, the old image is the disk again when the new one was committed
# into it, by the server, by nbdkit-qcow2-img or by qemu-img, and when the new one has become
# independent.  If an image between them is committed and deleted, it is refused because of
# the one that lies over it now.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$abs_top_builddir/img/nbdkit-qcow2-img"
base="$tmp/base.qcow2"

# serve SCRIPT: serves the base; the script has c, a client of QMP, and h, one of the disk.
serve ()
{
  start_nbdkit control="$sockdir/qmp" "$base"
  PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" "$1" <<'PY'
import sys
from qmp import Client, connect
sockdir, tmp, script = sys.argv[1:]
c = Client(sockdir + "/qmp")
h = connect(sockdir + "/main.sock")

def snapshot(name):
    """The disk goes on there, and contains the letter from then on."""
    c.get("blockdev-snapshot-sync", device="disk",
          snapshot_file="%s/%s.qcow2" % (tmp, name))
    h.pwrite(name.encode() * 65536, 65536 * (ord(name) - ord("a")), h_fua)

def commit(**more):
    c.get("block-commit", device="disk", job_id="j", base=tmp + "/base.qcow2", **more)

h_fua = 1
exec(script)
PY
}

# new_disk: the images base, and a over it.
new_disk ()
{
  rm -f "$tmp"/*.qcow2
  make_image "$base" 1M
  serve 'snapshot("a")'
  qemu-img convert -U -f qcow2 -O raw "$tmp/a.qcow2" "$tmp/model.raw"
}

refused_now ()
{
  start_nbdkit "$base"
  refused_connection "base.qcow2: is not written: .*$1.qcow2"
  stop_nbdkit
}

# current: the base shows the disk, and can be written.
current ()
{
  start_nbdkit "$base"
  model verify "$uri" "$tmp/model.raw"
  nbdsh_run -c 'h.pwrite(h.pread(512, 0), 0)'
  stop_nbdkit
  check_clean "$base"
}

new_disk
stop_nbdkit
refused_now a
qemu-img commit -q -f qcow2 "$tmp/a.qcow2"
current

new_disk
stop_nbdkit
"$img" commit "$tmp/a.qcow2"
current

new_disk
stop_nbdkit
qemu-img rebase -f qcow2 -b '' "$tmp/a.qcow2"
start_nbdkit "$base"
nbdsh_run -c 'h.pwrite(b"x", 0)'
stop_nbdkit

# (Its data stays in the image that was on top.)
for end in stop_nbdkit kill9_nbdkit; do
  rm -f "$tmp"/*.qcow2
  make_image "$base" 1M
  serve 'snapshot("a")
snapshot("b")
commit()
c.until_event("BLOCK_JOB_READY")
c.get("job-complete", id="j")
c.until_event("BLOCK_JOB_COMPLETED")
h.pwrite(b"z" * 65536, 512 * 1024, h_fua)'
  $end
  check_leaks_only "$base"
  qemu-img convert -f qcow2 -O raw "$base" "$tmp/model.raw"
  current
done

rm -f "$tmp"/*.qcow2
make_image "$base" 1M
serve 'for name in "a", "b", "c", "d":
    snapshot(name)
commit(top=tmp + "/b.qcow2")
c.until_event("BLOCK_JOB_COMPLETED")'
stop_nbdkit
rm "$tmp/a.qcow2" "$tmp/b.qcow2"
refused_now d
rm -f "$tmp"/*.qcow2
make_image "$base" 1M
serve 'snapshot("a")
snapshot("b")
commit(top=tmp + "/a.qcow2")
c.until_event("BLOCK_JOB_COMPLETED")'
stop_nbdkit
rm "$tmp/a.qcow2"
refused_now b
check_clean "$tmp/b.qcow2"
