#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The host's file system is full: the client gets ENOSPC, no data is lost, and when there
# is space again everything works again.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_namespace

mkdir "$tmp/small"
mount -t tmpfs -o size=12m tmpfs "$tmp/small"
img="$tmp/small/a.qcow2"

for cluster in 64k 4k 512 2M; do
  rm -f "$tmp"/small/*
  make_image "$img" 64M "cluster_size=$cluster"
  head -c 4M /dev/zero > "$tmp/small/ballast"
  start_nbdkit file="$img"
  nbdsh_run -c - <<PY
import errno, os, random
rng = random.Random(1)
size = h.get_size()
model = bytearray(size)
block = 65536

def write(offset, count=block):
    data = rng.randbytes(count)
    h.pwrite(data, offset)
    model[offset:offset + count] = data

def compare(what):
    for o in range(0, size, 1 << 20):
        assert h.pread(1 << 20, o) == model[o:o + (1 << 20)], (what, o)

def fill(offsets):
    """Until it is full: how many of them went well."""
    n = failed = 0
    for o in offsets:
        try:
            write(o)
            n += 1
        except nbd.Error as e:
            assert e.errnum == errno.ENOSPC, e
            # The bytes of a write that failed are the old ones or the new.
            got = h.pread(block, o)
            model[o:o + block] = got
            failed += 1
            if failed == 20:
                return n
    raise SystemExit("it did not fill up")

# Some that is safe.
for o in range(0, 1 << 20, block):
    write(o)
h.flush()
durable = bytes(model[:1 << 20])

offsets = list(range(1 << 20, size, block))
rng.shuffle(offsets)
n = fill(offsets)
print("full after", n, "blocks")
compare("full")
try:
    h.flush()
except nbd.Error as e:
    assert e.errnum == errno.ENOSPC, e
compare("full, after flush")
# In place it still works.
write(0)
write(block * 3 + 100, 1000)
compare("in place")

# Space, from outside.
os.unlink("$tmp/small/ballast")
h.flush()
compare("space again")
for o in offsets[:8]:
    write(o)
for o in offsets[-8:]:
    write(o)
h.flush()
compare("written again")

# Full once more; now the guest itself makes space.
more = [o for o in offsets if not any(model[o:o + block])]
fill(more)
try:
    h.flush()
except nbd.Error as e:
    assert e.errnum == errno.ENOSPC, e
compare("full again")
for o in range(0, size, 2 << 20):
    before = bytes(model[o:o + (2 << 20)])
    if o < 16 << 20:
        try:
            h.trim(2 << 20, o)
            model[o:o + (2 << 20)] = bytes(2 << 20)
        except nbd.Error as e:
            assert e.errnum == errno.ENOSPC, e
            got = h.pread(2 << 20, o)
            model[o:o + (2 << 20)] = got
compare("trimmed")
for i in range(3):
    try:
        h.flush()
        break
    except nbd.Error as e:
        assert e.errnum == errno.ENOSPC, e
else:
    raise SystemExit("flush goes on failing after trim")
for o in offsets[:4]:
    write(o)
h.flush()
compare("at the end")
with open("$tmp/model.raw", "wb") as f:
    f.write(model)
PY
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"

  # Killed while it is full: what was flushed is there.
  rm -f "$tmp"/small/*
  make_image "$img" 64M "cluster_size=$cluster"
  start_nbdkit file="$img"
  nbdsh_run -c - <<'PY'
import errno
for i in range(16):
    h.pwrite(b"F" * 65536, i << 16)
h.flush()
for i in range(16, 1024):
    try:
        h.pwrite(b"U" * 65536, i << 16)
        if i % 10 == 0:
            h.flush()
    except nbd.Error as e:
        assert e.errnum == errno.ENOSPC, e
        break
PY
  kill9_nbdkit main
  check_leaks_only "$img"
  qemu-io -r -f qcow2 -c 'read -P 0x46 0 1M' "$img" > "$tmp/out"
  if grep -q 'verification failed' "$tmp/out"; then fail "flushed data are lost"; fi
done
umount "$tmp/small"
