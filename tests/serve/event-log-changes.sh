#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# log= has a line for each change that a parameter or a command makes, for each job when it
# begins and ends, for what a crash has left and was put in order, and for an image that is
# served read-only.  What is no error is not among nbdkit's errors.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version
export PYTHONPATH="$srcdir/lib"

# heard IMAGE EVENT TEXT LEVEL: there is one such line.
heard ()
{
  "$python" - "$tmp/log" "$@" <<'PY'
import sys
import events

path, image, event, text, level = sys.argv[1:]
lines = [line for line in events.read(path)
         if (line["event"], line["image"]) == (event, image) and text in line["text"]]
assert [line["level"] for line in lines] == [level], lines
PY
}

img="$tmp/a.qcow2"
start_nbdkit "$img" create=1M snapshot-create=before resize=+1M bitmap-add=b \
  control="$sockdir/qmp" log="$tmp/log" log-format=json
"$python" - "$sockdir/qmp" "$tmp" <<'PY'
import sys
from qmp import Client

c = Client(sys.argv[1])
c.get("block_resize", device="disk", size=4 << 20)
c.get("block-dirty-bitmap-clear", node="disk", name="b")
c.get("blockdev-snapshot-internal-sync", device="disk", name="by\"command")
c.get("blockdev-snapshot-delete-internal-sync", device="disk", name="before")
c.refuses("", "block_resize", device="disk", size=-1)
c.get("blockdev-snapshot-sync", device="disk", snapshot_file=sys.argv[2] + "/top.qcow2")
c.get("block-stream", device="disk", job_id="s1")
while c.get("query-jobs"):
    pass
PY
stop_nbdkit
cat "$tmp/log"
heard "$img" changed 'created, ' info
heard "$img" changed 'snapshot "before" was created' info
heard "$img" changed 'the disk has 2097152 bytes now' info
heard "$img" changed 'bitmap "b" was added' info
heard "$img" changed 'the disk has 4194304 bytes now' info
heard "$img" changed 'bitmap "b" was cleared' info
heard "$img" changed 'snapshot "by"command" was created' info
heard "$img" changed 'snapshot "before" was deleted' info
heard "$tmp/top.qcow2" changed 'is the image of the disk' info
"$python" - "$tmp" <<'PY'
import sys
import events

lines = [line for line in events.read(sys.argv[1] + "/log") if line["event"] == "job"]
assert [line["status"] for line in lines] == ["started", "completed"], lines
for line in lines:
    assert line["image"] == sys.argv[1] + "/top.qcow2", line
    assert (line["job"], line["type"], line["level"]) == ("s1", "stream", "info"), line
PY

# After a crash.
make_image "$img" 8M
for options in lazy_refcounts=on lazy_refcounts=off; do
  rm "$img" "$tmp/log"
  make_image "$img" 8M "$options"
  start_nbdkit "$img"
  "$python" - "$uri" "$nbdkit_pid" <<'PY'
import os
import signal
import sys
import nbd

h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"x" * 65536, 1 << 20)
h.flush()
h.pwrite(b"x" * 65536, 2 << 20)
os.kill(int(sys.argv[2]), signal.SIGKILL)
PY
  wait "$nbdkit_pid" || :
  unset "server_pid[main]"
  start_nbdkit "$img" log="$tmp/log" log-format=json
  nbdinfo --size "$uri"
  stop_nbdkit
  if [ "$options" = lazy_refcounts=on ]; then
    heard "$img" recovered 'its refcounts were counted anew' warning
  else
    heard "$img" recovered 'leaked clusters were freed' warning
  fi
  if grep error: "${server_log[main]}"; then fail "nothing has failed"; fi
done

# That an image cannot be written is no error of the client that only reads it.
header_patch "$img" 72 Q 2
rm "$tmp/log"
start_nbdkit "$img" log="$tmp/log" log-format=json
nbdinfo "$uri" | grep 'is_read_only: true'
nbdinfo "$uri"
stop_nbdkit
heard "$img" read-only 'served read-only: ' warning
if grep error: "${server_log[main]}"; then fail "nothing has failed"; fi
