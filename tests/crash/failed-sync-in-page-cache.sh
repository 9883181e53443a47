#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# After a failed sync, the host's page cache has changes that the disk lacks, and Linux says
# so only once.  The next session believes the disk: otherwise it would free clusters that
# the disk's metadata still uses, and give them to others.  The session ends in three
# ways; then the host works again, more is written and flushed, and the power is cut.
#
# The host's disk is a file in a small tmpfs.  One of its blocks, where the image has an L2
# table, cannot be written while the tmpfs is full.  So nothing may free a page meanwhile, as
# ext4 does if it initializes inode tables in the background.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_namespace
[ "$(id -u)" = 0 ] || skip "only root may use loop devices"
requires losetup --find
requires mkfs.ext4 -V
requires filefrag -V

mkdir "$tmp/memory" "$tmp/host" "$tmp/after"
disk="$tmp/memory/disk"
img="$tmp/host/a.qcow2"

# client PYTHON
client ()
{
  nbdsh_run -c "
def refused(call, *args):
    try:
        call(*args)
    except nbd.Error as e:
        assert e.errno == 'EIO', e
        return
    raise SystemExit('no error')
" -c "$1"
}

# block_of OFFSET: the disk's block of 4096 bytes where the image has this offset.
block_of ()
{
  filefrag -v -b4096 "$img" | awk -F '[:. ]+' -v block=$(($1 / 4096)) '
    /^ *[0-9]+:/ && $3 <= block && block <= $4 { print $5 + block - $3 }'
}

# closed N: clients have left the image of a directory N times.
closed ()
{
  [ "$(grep -c 'a[.]qcow2: closed' "${server_log[main]}")" -ge "$1" ]
}

for row in stop: kill: stay:dir stop:lazy kill:lazy stop:old kill:old \
           kill:repair; do
  IFS=: read -r ending kind <<< "$row"
  echo "--- $row"
  mount -t tmpfs -o size=80M none "$tmp/memory"
  head -c 64M /dev/zero > "$disk"
  mkfs.ext4 -q -b 4096 -E nodiscard,lazy_itable_init=0 -O ^has_journal "$disk"
  mount -o loop "$disk" "$tmp/host"
  create=compat=v3
  case "$kind" in
    lazy) create=lazy_refcounts=on ;;
    old) create=compat=v2 ;;
  esac
  qemu-img create -q -f qcow2 -o "$create" "$img" 128M
  served=(file="$img"); if [ "$kind" = dir ]; then served=(dir="$tmp/host"); fi
  served+=(checkpoint-interval=0)

  start_nbdkit -v -- "${served[@]}"
  if [ "$kind" = dir ]; then uri="nbd+unix:///a.qcow2?socket=$sock"; fi
  client 'h.pwrite(b"G" * 65536, 0); h.pwrite(b"h" * 65536, 64 << 20); h.flush()'
  if [ "$ending" != stay ]; then stop_nbdkit; start_nbdkit "${served[@]}"; fi
  sync -f "$img"

  # That block is lost.
  block=$(block_of $((4 << 16)))
  dd if="$disk" of="$tmp/block" bs=4096 skip="$block" count=1 status=none
  [ "$(od -An -tx1 -N8 "$tmp/block" | tr -d ' ')" = 8000000000050000 ]
  fallocate -p -o $((block * 4096)) -l 4096 "$disk"
  if dd if=/dev/zero of="$tmp/memory/ballast" bs=4096 status=none 2> /dev/null; then
    fail "the tmpfs is not full"
  fi
  # What the session shows is not lost for clients that save it.
  client '
h.trim(65536, 0)
h.pwrite(b"1" * 65536, 1 << 20)
refused(h.flush)
refused(h.pwrite, b"x", 0)
assert h.pread(65536, 0) == bytes(65536)
assert h.pread(65536, 1 << 20) == b"1" * 65536
assert h.pread(65536, 64 << 20) == b"h" * 65536
'
  case "$ending" in
    stop) stop_nbdkit ;;
    kill) kill9_nbdkit main ;;
    stay) await closed 2 ;;
  esac
  rm "$tmp/memory/ballast"
  dd if="$tmp/block" of="$disk" bs=4096 seek="$block" conv=notrunc status=none

  # (A check opens the image before anything else does.)
  if [ "$kind" = repair ]; then served+=(check=repair); fi
  if [ "$ending" != stay ]; then start_nbdkit "${served[@]}"; fi
  if [ "$kind" = dir ]; then uri="nbd+unix:///a.qcow2?socket=$sock"; fi
  # The trim and the write were never flushed.
  client '
assert h.pread(65536, 0) in (bytes(65536), b"G" * 65536)
assert h.pread(65536, 1 << 20) in (bytes(65536), b"1" * 65536)
h.pwrite(b"2" * 65536, 1 << 20)
for i in range(1, 41):
    h.pwrite(b"H" * 65536, (64 << 20) + (i << 16))
h.flush()
'
  sync "$disk"
  cp --sparse=always "$disk" "$tmp/cut"
  kill9_nbdkit main

  mount -o loop "$tmp/cut" "$tmp/after"
  check_leaks_only "$tmp/after/a.qcow2"
  qemu-img convert -f qcow2 -O raw "$tmp/after/a.qcow2" "$tmp/after.raw"
  "$python" - "$tmp/after.raw" <<'PY'
import sys
with open(sys.argv[1], "rb") as f:
    raw = f.read()
assert raw[:65536] in (bytes(65536), b"G" * 65536), raw[:16]
assert raw[1 << 20:(1 << 20) + 65536] == b"2" * 65536
at = 64 << 20
assert raw[at:at + 65536] == b"h" * 65536
assert raw[at + 65536:at + 41 * 65536] == b"H" * 40 * 65536
PY
  umount "$tmp/after" "$tmp/host"
  await umount "$tmp/memory"    # (the loop device may have been opened by others)
done
