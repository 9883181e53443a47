#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img check -r all repairs the snapshot tables that qemu-img check -r all
# repairs, with the same status and the same snapshots afterwards; and it names what is
# lost.  A table that cannot be read is left alone.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

# qemu-img hands each read to another thread, and there are hundreds of thousands: on one
# processor that takes a fifth of the time.
if allowed="$(taskset -cp $$)"; then taskset -cp "${allowed##*[!0-9]}" $$; fi

# rewrite FILE EXTRA...: gives the entries of the table, in its cluster, extra data of
# these sizes ("-": as it is).
rewrite ()
{
  "$python" - "$@" << 'EOF'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    f.seek(60)
    n, start = struct.unpack(">IQ", f.read(12))
    f.seek(start)
    old, new = f.read(65536), b""
    for want in sys.argv[2:]:
        size = sum(struct.unpack(">HH", old[12:16]))
        extra, = struct.unpack(">I", old[36:40])
        data = old[40:40 + extra]
        if want != "-":
            data = (data + bytes(int(want)))[:int(want)]
        strings = old[40 + extra:40 + extra + size]
        new += old[:36] + struct.pack(">I", len(data)) + data + strings
        new += bytes(-len(new) % 8)
        old = old[(40 + extra + size + 7) // 8 * 8:]
    f.seek(start)
    f.write(new)
EOF
}

# move_table FILE OFFSET COUNT: says that the snapshot table is there.
move_table ()
{
  header_patch "$1" 60 I "$3" 64 Q "$2"
}

# everything FILE: the facts, all snapshots among them.
everything ()
{
  "$info" info --output=json "$1" | sed '/"children": /,/^    \],$/d; /actual-size/d'
}
info=qemu-img

# repair SNAPSHOT...: both repair disk.qcow2, with the same result.  Ours counts the same
# entries.  These snapshots, and the disk, show what they did.
repair ()
{
  local snapshot

  cp ours/disk.qcow2 before.qcow2
  both_status check -r all disk.qcow2
  [ "$status" = 0 ]
  cp ours.err losses
  diff <(grep corruptions theirs.out) <(grep corruptions ours.out)
  (cd ours && img check disk.qcow2)
  check_clean ours/disk.qcow2
  diff <(cd theirs && everything disk.qcow2) <(cd ours && everything disk.qcow2)
  [ "$info" = qemu-img ] || return 0
  qemu-img compare -q good.qcow2 ours/disk.qcow2
  for snapshot; do
    qemu-img convert -l "$snapshot" -O raw good.qcow2 good.raw
    qemu-img convert -l "$snapshot" -O raw ours/disk.qcow2 ours.raw
    cmp good.raw ours.raw
  done
}

make_good ()
{
  qemu-img create -q -f qcow2 -o compat="$1" good.qcow2 10M
  for snapshot in one two three; do
    qemu-io -f qcow2 -c "write -P ${#snapshot} 1M 128k" good.qcow2
    qemu-img snapshot -c "$snapshot" good.qcow2
  done
  qemu-io -f qcow2 -c 'write -P 9 1M 64k' good.qcow2
  in_both cp ../good.qcow2 disk.qcow2
}

# Entries that do not state the size of the disk: allowed only in version 2.
make_good 0.10
in_both rewrite disk.qcow2 0 8 -
both_status check disk.qcow2
[ "$status" = 0 ]
make_good 1.1
in_both rewrite disk.qcow2 0 8 -
both_status check disk.qcow2
[ "$status" = 2 ]
grep 'snapshot-table: entry 1 of .* does not state the size' ours.err
# Leaks are not all that is wrong.
(cd ours && cp disk.qcow2 leaks.qcow2)
if (cd ours && img check -q -r leaks leaks.qcow2); then fail "repaired"; fi
cmp ours/disk.qcow2 ours/leaks.qcow2
repair one two three
[ ! -s losses ]

# More extra data than is read.
in_both cp ../good.qcow2 disk.qcow2
in_both rewrite disk.qcow2 - 3000 -
if (cd ours && img check disk.qcow2); then fail "not found"; fi
repair one two three
grep 'disk.qcow2: repair: snapshot "two" (id 2) loses 1976 bytes of unknown extra data' \
  losses
# So much that the table, here at the end, goes on in a cluster that is not counted; and
# not the first repair.
in_both cp ../good.qcow2 disk.qcow2
"$python" - << 'EOF'
import struct
for path in "ours/disk.qcow2", "theirs/disk.qcow2":
    with open(path, "r+b") as f:
        f.seek(64)
        start, = struct.unpack(">Q", f.read(8))
        f.seek(start)
        table = f.read(65536)
        f.seek(0, 2)
        end = (f.tell() + 65535) // 65536 * 65536
        f.write(bytes(end - f.tell()) + table)
        f.seek(64)
        f.write(struct.pack(">Q", end))
EOF
in_both rewrite disk.qcow2 - - 70000
repair one two three
repair one two three
[ ! -s losses ]

# Too many: version 2, entries without anything, but for the last ones.  Their L1 table is
# that of "one", which keeps it.
make_good 0.10
"$python" - << 'EOF'
import struct
with open("good.qcow2", "rb") as f:
    f.seek(64)
    start, = struct.unpack(">Q", f.read(8))
    f.seek(start)
    used = f.read(4096).rstrip(b"\0")
used += bytes(-len(used) % 8)
last = used[:12] + struct.pack(">HH", 1, 4) + used[16:64] + b"4last" + bytes(3)
with open("table", "wb") as f:
    f.write(used + bytes(40) * (65536 - 3) + last * 7)
EOF
in_both dd if=../table of=disk.qcow2 bs=1M seek=8 conv=notrunc status=none
in_both move_table disk.qcow2 $((8 << 20)) $((65536 + 7))
img_refused 'the image has 65543 snapshots, more than 65536; a repair' info disk.qcow2
# (qemu-img needs seconds to open an image with so many.)
long_suite || info=$IMG
repair one
info=qemu-img
grep 'snapshot "last" (id 4) is removed: the snapshot table is too large' losses
[ "$(wc -l < losses)" = 7 ]

# Tables of more than 64 MiB, the first with extra data that is too long.
make_good 1.1
"$python" - << 'EOF'
import struct
with open("good.qcow2", "rb") as f:
    f.seek(64)
    start, = struct.unpack(">Q", f.read(8))
    f.seek(start)
    used = f.read(4096).rstrip(b"\0")
used += bytes(-len(used) % 8)
# With 65535 bytes of id and of name.
def entry(letter, extra):
    return (struct.pack(">QIHHIIQII", 0, 0, 65535, 65535, 0, 0, 0, 0, extra) +
            bytes(extra) + letter * 65535 * 2 + bytes(2))
n = ((64 << 20) - len(used)) // len(entry(b"a", 1024))
with open("table", "wb") as f:
    f.write(used + entry(b"a", 1024) * (n - 1) + entry(b"b", 9000) +
            entry(b"c", 1024) * 2)
with open("count", "w") as f:
    f.write(str(3 + n + 2))
EOF
in_both dd if=../table of=disk.qcow2 bs=1M seek=8 conv=notrunc status=none
in_both move_table disk.qcow2 $((8 << 20)) "$(cat count)"
repair one two three
grep 'snapshot "b[b]*" (id b[b]*) loses 7976 bytes' losses
[ "$(grep -c 'snapshot "c[c]*" (id c[c]*) is removed' losses)" = 2 ]

# What qemu-img cannot repair, or "repairs" by forgetting all snapshots, stays.
make_good 1.1
for bad in 1099511627776 512 0; do
  (cd ours && cp ../good.qcow2 disk.qcow2 && move_table disk.qcow2 "$bad" 3)
  cp ours/disk.qcow2 before.qcow2
  if (cd ours && img check -q -r all disk.qcow2); then fail "repaired"; fi
  cmp ours/disk.qcow2 before.qcow2
done
