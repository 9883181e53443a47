#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A block device or an NBD export that grows while it is served: what is new is used
# without an error.  watermark= tells in time when it is to grow, and stats= how far it
# is used.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires losetup --version

stats="$tmp/stats.json"
first=$((20 << 20))

# write_and_grow GROW: fills the last server's disk of 80M.  GROW (a shell command) makes
# the device $size bytes long.
write_and_grow ()
{
  nbdsh_run -c - <<PY
import errno, json, os, subprocess, time
def stats(name):
    return json.load(open("$stats"))["file"][name]
def grow(size):
    subprocess.check_call(["bash", "-c", """$1"""], env=dict(os.environ, size=str(size)))
def until(condition):
    while not condition():
        time.sleep(0.01)

at = 0
def write(n):
    global at
    for end in range(at + (n << 20), at, -65536):
        h.pwrite(b"%8d" % at * 8192, at)
        at += 65536

assert stats("device") and stats("watermark") == 4 << 20
# In time.
write(18)
until(lambda: stats("low") == 1)
until(lambda: stats("high_water") >= 18 << 20)
f = json.load(open("$stats"))["file"]
assert f["left"] == f["size"] - f["high_water"] <= 4 << 20
grow(40 << 20)
write(19)
until(lambda: stats("low") == 2)
assert stats("size") == 40 << 20
# At once, after a large piece of the device would not fit.
write(2)
grow(60 << 20)
write(17)
# Too late: at the end of the device there is an error, until it has grown.
try:
    write(40)
    raise SystemExit("it did not fill up")
except nbd.Error as e:
    assert e.errnum == errno.ENOSPC, e
grow(100 << 20)
while at < 80 << 20:
    try:
        write(1)
    except nbd.Error as e:      # an export is asked once per second
        assert e.errnum == errno.ENOSPC, e
        time.sleep(0.1)
h.flush()
for o in range(0, 80 << 20, 65536):
    assert h.pread(65536, o) == b"%8d" % o * 8192, o
until(lambda: stats("size") == 100 << 20)
assert stats("low") == 3
PY
  [ "$(grep -c 'the watermark, 4194304' "$log")" = 3 ]
  grep ' of 41943040 bytes are left' "$log"
}

# An export, which has no locks.
log="$tmp/main.log"
truncate -s "$first" "$tmp/far"
qemu-img create -q -f qcow2 "$tmp/image" 80M
dd if="$tmp/image" of="$tmp/far" conv=notrunc status=none
"$NBDKIT" -f -U "$sockdir/far.sock" -P "$tmp/far.pid" file "$tmp/far" &
helper_pids+=($!)
await -p $! test -s "$tmp/far.pid"
start_nbdkit "file=nbd+unix:///?socket=$sockdir/far.sock" lock=false stats="$stats" \
  watermark=4M
write_and_grow "truncate -s \$size $tmp/far"
stop_nbdkit
check_clean "$tmp/far"

# A file says nothing about how much of its file system is left.
refused 'watermark.*not on a block device' file="$tmp/image" watermark=1M
refused 'dir=.*watermark=' dir="$tmp" watermark=1M
refused 'watermark=' file="$tmp/image" watermark=much
refused 'on-enospc=pause: must be fail or wait' file="$tmp/image" on-enospc=pause

# A device.
truncate -s "$first" "$tmp/disk"
dev="$(losetup --find --show "$tmp/disk")" || skip "no loop device can be had"
# It goes when the last process that has it open ends, however that is.
exec 9<>"$dev"
losetup --detach "$dev"
qemu-img create -q -f qcow2 "$dev" 80M
start_nbdkit file="$dev" stats="$stats" watermark=4M
write_and_grow "truncate -s \$size $tmp/disk; losetup --set-capacity $dev"
stop_nbdkit
check_clean "$dev"
