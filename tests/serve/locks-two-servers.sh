#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Two servers cannot use one image if one of them writes.  Any number of readers can.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 1M
qemu-io -f qcow2 -c 'write -P 1 0 64k' "$img"

# Both are started before either has a client: at most one of them gets to write.
start_nbdkit_as a file="$img"
uri_a="$uri"
if start_nbdkit_as b file="$img"; then
  "$python" - <<PY
import nbd
held = []
for uri in ("$uri_a", "$uri"):
    try:
        c = nbd.NBD()
        c.connect_uri(uri)
        held.append(c)
    except nbd.Error:
        pass
assert len(held) <= 1, "two servers write the same image"
PY
  stop_nbdkit b
else
  unset "server_pid[b]"
fi

# While one has a client, the other is refused when it starts, for reading too.
uri="$uri_a"
hold_connection
nbdsh_run -c 'h.pwrite(b"a" * 65536, 131072)'
refused 'lock: is another process' file="$img"
if start_nbdkit_as c -r -- file="$img"; then
  if nbdinfo --size "$uri"; then
    fail "read while it is written"
  fi
  stop_nbdkit c
else
  unset "server_pid[c]"
fi
drop_connections
stop_nbdkit a
check_clean "$img"

# Readers.
start_nbdkit_as a -r -- file="$img"
uri_a="$uri"
hold_connection
start_nbdkit_as b -r -- file="$img"
nbdsh_run -c 'assert h.pread(1, 131072) == b"a"'
uri="$uri_a"
nbdsh_run -c 'assert h.pread(1, 131072) == b"a"'
drop_connections
stop_nbdkit a
stop_nbdkit b

# Overlays over one base can be written at the same time.
for o in o1 o2; do
  make_image "$tmp/$o.qcow2" 1M "backing_file=a.qcow2,backing_fmt=qcow2"
  start_nbdkit_as "$o" file="$tmp/$o.qcow2"
  hold_connection
  nbdsh_run -c "h.pwrite(b'$o', 100); h.flush(); assert h.pread(1, 0) == b'\\1'"
done
drop_connections
for o in o1 o2; do
  stop_nbdkit "$o"
  check_clean "$tmp/$o.qcow2"
done
