#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Statistics say that an image is corrupt, or has failed, and why: while clients use it, and
# after the last one has left it in a directory, until it is opened again.  An alert raised
# by that would otherwise end by itself.  They say too that an image was not opened.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_filter error

# is IMAGE STATE TEXT: that is its state, and the reason has the text.
is ()
{
  "$python" - "$tmp/stats" "$@" <<'PY'
import json
import sys

path, name, state, text = sys.argv[1:]
images = json.load(open(path))["images"]
one = [i for i in images if i["image"] == name]
print(one)
sys.exit(len(one) != 1 or one[0]["state"] != state or text not in (one[0]["reason"] or ""))
PY
}

# --- corrupt ---

mkdir "$tmp/images"
make_image "$tmp/images/bad" 1M
qemu-io -f qcow2 -c 'write 0 128k' "$tmp/images/bad"
cp "$tmp/images/bad" "$tmp/good"
make_image "$tmp/images/well" 1M
# An L2 entry that is not aligned.
header_patch "$tmp/images/bad" $((4 << 16)) Q 0x8000000000000200
use ()
{
  "$python" - "$sock" "$1" "$tmp/go" <<'PY'
import os
import sys
import nbd

h = nbd.NBD()
h.set_export_name(sys.argv[2])
h.connect_unix(sys.argv[1])
try:
    h.pread(512, 0)
except nbd.Error:
    pass
open(sys.argv[3] + ".read", "w")
while not os.path.exists(sys.argv[3]):
    pass
PY
}
start_nbdkit dir="$tmp/images" stats="$tmp/stats"
use bad &
helper_pids+=($!)
await test -e "$tmp/go.read"
await is bad corrupt 'L2 entry'
touch "$tmp/go"
wait "${helper_pids[@]}"
helper_pids=()
use well
await is well closed ''
is bad corrupt 'L2 entry'
# What takes its place is another image, once somebody uses it.
mv "$tmp/good" "$tmp/images/bad"
use well
is bad corrupt 'L2 entry'
use bad
await is bad closed ''
stop_nbdkit

# For Prometheus; and it is the image itself that says so.
cp "$tmp/images/well" "$tmp/images/bad"
header_patch "$tmp/images/bad" 72 Q 2
start_nbdkit dir="$tmp/images" stats="$tmp/stats.prom" stats-format=prometheus
use bad
stop_nbdkit
metric='nbdkit_qcow2_image_state{server="stats.prom",image="bad",state='
grep -F "$metric\"corrupt\"} 1" "$tmp/stats.prom"
grep -F "$metric\"closed\"} 0" "$tmp/stats.prom"
grep '^nbdkit_qcow2_image_reason_info{.*image="bad",reason=".*marked corrupt' "$tmp/stats.prom"

# --- refused ---

truncate -s 1M "$tmp/images/none"
printf 'QFI\373\377' | dd of="$tmp/images/none" conv=notrunc
rm -f "$tmp/stats"
try ()
{
  nbdinfo --size "nbd+unix:///$1?socket=$sock" || :
}
start_nbdkit dir="$tmp/images" stats="$tmp/stats"
try none
try nonesuch
try none
await is none refused 'version'
qemu-img create -f qcow2 "$tmp/other" 1M
mv "$tmp/other" "$tmp/images/none"
try none
await is none closed ''
if grep nonesuch "$tmp/stats"; then fail "it is not there"; fi
stop_nbdkit

# An image that another program has locked is not at fault: only the log tells of it.
make_image "$tmp/images/locked" 1M
start_nbdkit_as other "$tmp/images/locked"
hold_connection
rm -f "$tmp/stats"
start_nbdkit dir="$tmp/images" stats="$tmp/stats" log="$tmp/log"
try locked
try none
await is none closed ''
grep -E 'warning refused .* export="locked" .*lock: is another process' "$tmp/log"
if grep '"locked"' "$tmp/stats"; then fail "it counts as refused"; fi
stop_nbdkit
drop_connections
stop_nbdkit other

# A server that does not start has a line in the log.
for what in file="$tmp/a.qcow2" dir="$tmp/nonesuch"; do
  rm -rf "$tmp/log"
  make_image "$tmp/a.qcow2" 1M
  header_patch "$tmp/a.qcow2" 4 I 77
  refused '' "$what" stats="$tmp/stats" log="$tmp/log"
  grep -E 'error start-failed image=.* text=".+"$' "$tmp/log"
done

# --- failed ---

make_image "$tmp/far.qcow2" 8M
truncate -s 4M "$tmp/far.qcow2"
"$NBDKIT" --exit-with-parent -f -U "$sockdir/far.sock" --filter=error file \
  "$tmp/far.qcow2" error=EIO error-pwrite-rate=100% error-pwrite-file="$tmp/fails" &
helper_pids+=($!)
await listens "$sockdir/far.sock"
start_nbdkit lock=false "nbd+unix:///?socket=$sockdir/far.sock" stats="$tmp/stats" \
  log="$tmp/log"
"$python" - "$sock" "$tmp/fails" <<'PY'
import sys
import nbd

h = nbd.NBD()
h.connect_unix(sys.argv[1])
h.pwrite(b"x" * 65536, 0)
open(sys.argv[2], "w")
try:
    h.flush()
    sys.exit("it was written")
except nbd.Error:
    pass
PY
await is disk failed ''
is disk failed 'could not'
grep ' error failed image="nbd+unix://.*could not be marked' "$tmp/log"
kill -TERM "$nbdkit_pid"
wait "$nbdkit_pid" || :
unset "server_pid[main]"
