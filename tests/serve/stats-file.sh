#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# stats=FILE: JSON, written at the start, whenever a client leaves, and at the end.
# Readers never see a partial file, and no other file is ever replaced.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2" file="$tmp/stats.json"
make_image "$img" 64M
qemu-io -f qcow2 -c 'write 8M 4M' "$img" > /dev/null
qemu-img convert -c -f qcow2 -O qcow2 "$img" "$tmp/c.qcow2"

# value SECTION COUNTER
value ()
{
  "$python" -c 'import json, sys
print(json.load(open(sys.argv[1]))[sys.argv[2]][sys.argv[3]])' "$file" "$1" "$2"
}

# is SECTION COUNTER VALUE
is ()
{
  [ "$(value "$1" "$2")" = "$3" ]
}

start_nbdkit file="$img" stats="$file" l2-cache=16M
[ "$(value connections ever)" = 0 ]
[ "$(value map limit_bytes)" = 16777216 ]

# A reader that looks all the time.
"$python" - "$file" "$tmp/stop" > "$tmp/reader" <<'PY' &
import json, os, sys
n = 0
while n == 0 or not os.path.exists(sys.argv[2]):
    json.load(open(sys.argv[1]))
    n += 1
print(n)
PY
reader=$!
for _ in 1 2 3 4 5; do
  nbdsh_run -c 'h.pwrite(b"x" * (1 << 20), 0)' -c 'h.flush()' \
            -c 'h.trim(1 << 20, 0)' -c 'h.flush()' -c 'h.pread(4096, 8 << 20)' &
  helper_pids+=($!)
done
for pid in "${helper_pids[@]}"; do wait "$pid"; done
helper_pids=()
await is connections ever 5
await is connections open 0
[ "$(value clusters allocated)" -ge 16 ]
[ "$(value clusters freed)" -ge 16 ]
[ "$(value flush requests)" -ge 10 ]
[ "$(value flush checkpoints)" -ge 1 ]
[ "$(value flush syncs)" -ge 1 ]
[ "$(value map misses)" -ge 1 ]
[ "$(value map hits)" -ge 1 ]
[ "$(value map bytes)" -le "$(value map peak_bytes)" ]
: > "$tmp/stop"
wait "$reader"
[ "$(cat "$tmp/reader")" -gt 0 ]
stop_nbdkit
[ "$(value connections open)" = 0 ]
# Nothing else is left there.
[ "$(echo "$tmp"/stats.json*)" = "$file" ]

# Over the older ones; inflated clusters; a connection of which nobody knows that it leaves.
start_nbdkit -r -- file="$tmp/c.qcow2" stats="$file"
nbdsh_run -c 'h.pread(4096, 8 << 20)' -c 'h.pread(4096, (8 << 20) + 4096)'
stop_nbdkit
[ "$(value inflated clusters)" -ge 1 ]
[ "$(value inflated hits)" -ge 1 ]
[ "$(value clusters allocated)" = 0 ]

# All images of a directory together.
mkdir "$tmp/images"
make_image "$tmp/images/1.qcow2" 64M
make_image "$tmp/images/2.qcow2" 64M
start_nbdkit dir="$tmp/images" stats="$file"
for i in 1 2; do
  uri="nbd+unix:///$i.qcow2?socket=$sock"
  nbdsh_run -c 'h.pwrite(b"x" * (1 << 20), 0)'
done
stop_nbdkit
[ "$(value clusters allocated)" -ge 32 ]

# What is something else stays.
before=$(fingerprint "$img")
refused 'is not a report' file="$img" stats="$img"
[ "$before" = "$(fingerprint "$img")" ]
refused 'cannot be replaced' file="$img" stats=/dev/null
refused 'cannot write' file="$img" stats="$tmp/nonesuch/stats.json"
[ "$before" = "$(fingerprint "$img")" ]
