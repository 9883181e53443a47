#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The external data file is locked as QEMU locks it, in both directions, also below
# another image.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2" data="$tmp/a.raw" twin="$tmp/b.qcow2" top="$tmp/top.qcow2"
make_image "$img" 1M "data_file=$data"
# Another image with the same data file: only the locks on that are in the way.
cp "$img" "$twin"
make_image "$top" 1M "backing_file=a.qcow2,backing_fmt=qcow2"

# held_bytes BYTE...: these and no others are locked on the data file.
held_bytes ()
{
  "$python" - "$data" "$@" <<'PY'
import fcntl, struct, sys
held = []
with open(sys.argv[1], "r+b") as f:
    for byte in range(300):
        fl = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0)
        if struct.unpack("hhqqi4x", fcntl.fcntl(f, 36, fl))[0] != fcntl.F_UNLCK:
            held.append(byte)
assert held == [int(a) for a in sys.argv[2:]], held
PY
}

# --- we have it

start_nbdkit -r -- file="$img"
held_bytes 100 203
qemu-io -r -f qcow2 -c 'read 0 512' "$twin"
fails_with 'Failed to get "resize" lock' qemu-io -f qcow2 -c 'write 0 512' "$twin"
stop_nbdkit
held_bytes

start_nbdkit file="$img"
held_bytes 100 203
hold_connection
held_bytes 100 101 103 203
fails_with 'Failed to get shared "resize" lock' \
  qemu-io -r -f qcow2 -c 'read 0 512' "$twin"
fails_with 'Failed to get shared "resize" lock' qemu-io -f qcow2 -c 'write 0 512' "$twin"
refused 'a\.raw.*"resize" lock: is another process' file="$twin"
drop_connections
stop_nbdkit
held_bytes

# Below another image: as for a reader.
start_nbdkit file="$top"
hold_connection
held_bytes 100 203
qemu-io -r -f qcow2 -c 'read 0 512' "$twin"
fails_with 'Failed to get "resize" lock' qemu-io -f qcow2 -c 'write 0 512' "$twin"
drop_connections
stop_nbdkit

start_nbdkit file="$img" lock=off
hold_connection
held_bytes
drop_connections
stop_nbdkit

# --- QEMU has it

hold_in_qemu_io -f qcow2 "$twin"
held_bytes 100 101 103 203
refused "a\\.raw: cannot get the shared \"resize\" lock.*PID $qemu_io" \
  file="$img"
refused 'a\.raw: cannot get the shared "resize" lock' -r -- file="$img"
refused 'a\.raw: cannot get the shared "resize" lock' file="$top"
end_qemu_io

hold_in_qemu_io -r -f qcow2 "$twin"
held_bytes 100 203
start_nbdkit file="$img"
refused_connection 'a\.raw: cannot get the "resize" lock'
# The image's own locks were given back: others can write it.
held_bytes 100 203
nbdinfo --size "nbd+unix:///?socket=$sock" || :
end_qemu_io
nbdsh_run -c 'h.pwrite(b"x", 0); h.flush()'
stop_nbdkit
check_clean "$img"
