#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Images behind NBD, and how many round trips a client waits for: to open a layer, to read
# what no slice in memory describes through many layers, to read what lies in many places,
# to read in order, where tables are there before they are needed, and to write where there
# is no table yet, or nothing, with a flush after each write.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

layers=8
near="$sockdir/near.sock" count="$sockdir/count.sock"
PLUGIN=file start_nbdkit_as far dir="$tmp"
"$python" -B "$srcdir/lib/roundtrips.py" "$near" "$sock" "$count" &
helper_pids+=($!)
await -p $! test -S "$near"
await -p $! test -S "$count"

# trips MOST WHAT: were there no more of them since this was last asked?
cat >"$tmp/trips.py" <<PY
import socket
def trips(most, what):
    s = socket.socket(socket.AF_UNIX)
    s.connect("$count")
    n, connections = map(int, s.recv(100).split())
    print("%s: %d round trips, %d connections; at most %d" % (what, n, connections, most))
    assert n <= most, what
    return n
def same(offset, data):
    f.seek(offset)
    assert data == f.read(len(data)), offset
f = open("$tmp/disk.raw", "rb")
PY
trips ()
{
  (cat "$tmp/trips.py"; echo "trips($1, '$2')") | "$python" -
}

# serve [-r] NAME [PARAMETER...]
serve ()
{
  local -a options=()
  local name

  trips 1000000 "to stop" >/dev/null
  if [ "$1" = -r ]; then options=(-r --); shift; fi
  name="$1"
  shift
  start_nbdkit "${options[@]}" "nbd+unix:///$name?socket=$near" lock=false \
    allow-uri="nbd+unix:///?socket=$near" "$@"
}

# A chain, the clusters of which are dealt out to the layers in turn, and the same disk in
# one image.
"$python" - >"$tmp/disk.raw" <<'PY'
import sys
for i in range(256):
    sys.stdout.buffer.write(bytes([i % 251 + 1]) * 65536)
PY
for ((i = 0; i < layers; ++i)); do
  backing=()
  if [ $i -gt 0 ]; then
    backing=(-u -b "nbd+unix:///layer$((i - 1))?socket=$near" -F qcow2)
  fi
  qemu-img create -q -f qcow2 "${backing[@]}" "$tmp/layer$i" 16M
  for ((n = i; n < 256; n += layers)); do
    echo "write -P $((n % 251 + 1)) $((n * 65536)) 64k"
  done | qemu-io "json:{\"driver\":\"qcow2\",\"backing\":null,\"file.driver\":\"file\",\
\"file.filename\":\"$tmp/layer$i\"}" >/dev/null
done
qemu-img convert -f raw -O qcow2 "$tmp/disk.raw" "$tmp/whole"

# Where the machine is so busy that a thread sleeps while all answers are let through, there
# are more round trips than it takes: then once more, with answers kept back for longer.
best_of ()
{
  local quiet

  for quiet in 0.04 0.08 0.16 0.32 0.64; do
    echo $quiet > "$count.quiet"
    if "$@"; then stop_nbdkit; return; fi
    stop_nbdkit
  done
  fail "$*: too many round trips"
}

# A miss asks all layers at once, and clusters in many places are read at once.
through_layers ()
{
  serve -r layer$((layers - 1)) l2-slice=512 &&
    trips $((8 * layers)) "to open $layers layers" &&
    (cat "$tmp/trips.py"; cat <<'PY') | nbdsh_run -c -
trips(1000, "to connect")
same(7 << 20, h.pread(4096, 7 << 20))
trips(2, "a read of the first slice")
same(7 << 20, h.pread(1 << 20, 7 << 20))
trips(1, "1M in 16 layers")
PY
}
best_of through_layers

# The same below an image that is written.
below_writable ()
{
  serve layer$((layers - 1)) &&
    (cat "$tmp/trips.py"; cat <<'PY') | nbdsh_run -c -
trips(1000, "to connect")
same(9 << 20, h.pread(4096, 9 << 20))
trips(2, "a read of the first slice")
PY
}
best_of below_writable

# Slices of 4M: a reader in order waits for the first one only.
in_order ()
{
  serve whole l2-slice=512 &&
    trips 10 "to open an image" &&
    (cat "$tmp/trips.py"; cat <<'PY') | nbdsh_run -c -
trips(1000, "to connect")
for at in range(0, 16 << 20, 1 << 20):
    same(at, h.pread(1 << 20, at))
trips(16 + 1, "16 reads in order")
PY
}
best_of in_order

# A new table is known to contain zeros: a write that needs one does not read it.
new_tables ()
{
  rm -f "$tmp/empty"
  qemu-img create -q -f qcow2 -o cluster_size=4k "$tmp/empty" 64M
  truncate -s 16M "$tmp/empty"
  serve empty l2-slice=512 &&
    (cat "$tmp/trips.py"; cat <<'PY') | nbdsh_run -c -
h.pwrite(b"a" * 4096, 0)
h.flush()
trips(1000, "to connect, and write for the first time")
for table in range(1, 17):
    h.pwrite(b"a" * 4096, table << 21)
    h.pwrite(b"b" * 4096, (table << 21) + (1 << 20))
trips(32 + 4, "32 writes to 16 new tables")
h.flush()
for table in range(1, 17):
    assert h.pread(4096, table << 21) == b"a" * 4096
    assert h.pread(4096, (table << 21) + (1 << 20)) == b"b" * 4096
PY
}
best_of new_tables
check_clean "$tmp/empty"

# A flush waits for the data, but no longer for the entry that points to it.
flush_after_each ()
{
  rm -f "$tmp/empty"
  qemu-img create -q -f qcow2 "$tmp/empty" 64M
  truncate -s 64M "$tmp/empty"
  serve empty &&
    (cat "$tmp/trips.py"; cat <<'PY') | nbdsh_run -c -
h.pwrite(b"a" * 4096, 0)
h.flush()
trips(1000, "to connect, and write for the first time")
for at in range(1, 17):
    h.pwrite(b"b" * 4096, at << 20)
    h.flush()
trips(2 * 16 + 4, "16 writes to new clusters, a flush after each")
for at in range(1, 17):
    assert h.pread(65536, at << 20) == b"b" * 4096 + bytes(61440)
PY
}
best_of flush_after_each
check_clean "$tmp/empty"
