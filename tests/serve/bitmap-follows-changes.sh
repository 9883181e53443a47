#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Persistent bitmaps: those that are enabled record each change, and nothing else; the
# others are kept.  QEMU reads them, before and after.  If the server is killed, the
# enabled ones are marked as in use, and nothing else is wrong.  If bitmaps cannot be kept
# correct, the image is read-only.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version

img="$tmp/a.qcow2"
bitmaps ()
{
  "$python" "$srcdir/lib/bitmaps.py" "$@"
}

# flags_of NAME: as qemu-img info tells them, also of an image that is being served.
flags_of ()
{
  qemu-img info -U -f qcow2 --output=json "$img" | "$python" -c '
import json, sys
data = json.load(sys.stdin)["format-specific"]["data"]
for b in data["bitmaps"]:
    if b["name"] == sys.argv[1]:
        print(",".join(sorted(b["flags"])))' "$1"
}

is_stored ()
{
  [ "$(flags_of "$1")" = auto ]
}

# Directory entry, table and bits of a bitmap, byte for byte.
bytes_of ()
{
  local entry table data
  read -r entry table data <<< "$(bitmaps where "$img" "$1")"
  echo "$entry $table $data"
  od -An -v -tx1 -j"$entry" -N32 "$img"
  od -An -v -tx1 -j"$table" -N512 "$img"
  if [ "$data" != 0 ]; then od -An -v -tx1 -j"$data" -N512 "$img"; fi
}

set_in_use ()
{
  local entry _
  read -r entry _ <<< "$(bitmaps where "$img" "$1")"
  header_patch "$img" $((entry + 12)) I '|1'
}

judge ()
{
  local name="$1" granularity="$2"
  bitmap_map "$img" "$name" > "$tmp/$name.after"
  bitmaps judge "$granularity" "$tmp/$name.before" "$tmp/$name.after" "$tmp/changes"
}

# make_bitmaps CLUSTER-SIZE[,OPTION...]: an image whose size is a multiple of nothing,
# with bitmaps of all kinds that have bits set.
followers="fine:512 four:4096 default:65536 coarse:2097152 huge:2147483648"
make_bitmaps ()
{
  local b

  rm -f "$img"
  make_image "$img" $(((21 << 20) + 1536)) "cluster_size=$1"
  for b in still:65536 broken:4096 $followers; do
    qemu-img bitmap --add -g "${b#*:}" "$img" "${b%:*}"
  done
  qemu-io -f qcow2 -c 'write 1M 70k' -c 'write -z 20M 1k' "$img" > /dev/null
  qemu-img bitmap --disable "$img" still
  # Nothing has happened yet for this one; and QEMU knows of no changes then.
  qemu-img bitmap --add -g 512 "$img" young
  set_in_use broken
  for b in still:65536 $followers young:512; do
    bitmap_map "$img" "${b%:*}" > "$tmp/${b%:*}.before"
  done
  : > "$tmp/changes"
}

check_bitmaps ()
{
  local b

  for b in $followers young:512; do
    [ "$(flags_of "${b%:*}")" = auto ]
    judge "${b%:*}" "${b#*:}"
  done
  [ "$(flags_of still)" = "" ]
  bitmap_map "$img" still | diff "$tmp/still.before" -
  [ "$still_bytes" = "$(bytes_of still)" ]
  [ "$(flags_of broken)" = auto,in-use ]
  [ "$broken_bytes" = "$(bytes_of broken)" ]
}

sample 2 512 4k 64k 2M 64k,extended_l2=on
for cluster in "${sample[@]}"; do
  make_bitmaps "$cluster"
  still_bytes=$(bytes_of still)
  broken_bytes=$(bytes_of broken)
  before=$(fingerprint "$img")
  start_nbdkit file="$img"

  # Who only looks changes nothing, writer or not.
  nbdsh_run -c 'h.pread(65536, 0)' -c 'h.flush()'
  [ "$before" = "$(fingerprint "$img")" ]
  [ "$(flags_of fine)" = auto ]

  # While something changes they are in use.
  hold_connection
  bitmaps change "$uri" "$tmp/changes" --ops 100
  [ "$(flags_of fine)" = auto,in-use ]
  [ "$(flags_of huge)" = auto,in-use ]
  [ "$(flags_of still)" = "" ]
  drop_connections

  # And when nobody can any more, they are stored, at once.
  for b in $followers young:512; do await is_stored "${b%:*}"; done

  # The next one begins anew.
  bitmaps change "$uri" "$tmp/changes" --ops 30
  stop_nbdkit
  check_clean "$img"
  check_bitmaps

  # Another server, another client.
  start_nbdkit file="$img" detect-zeroes=unmap
  nbdsh_run -c 'h.pwrite(bytes(100000), 3 << 20)'
  echo "$((3 << 20)) 100000" >> "$tmp/changes"
  stop_nbdkit
  check_clean "$img"
  check_bitmaps

  # What does nothing is not recorded: a trim that is ignored, or of no whole cluster.
  before=$(fingerprint "$img")
  start_nbdkit file="$img" discard=ignore
  nbdsh_run -c 'h.trim(4 << 20, 0)'
  stop_nbdkit
  start_nbdkit file="$img"
  nbdsh_run -c 'h.trim(300, 100)'
  stop_nbdkit
  [ "$before" = "$(fingerprint "$img")" ]

  # QEMU goes on with them.
  qemu-img bitmap --remove "$img" broken
  qemu-img bitmap --add --merge fine -g 512 "$img" merged
  qemu-img bitmap --clear "$img" fine
  qemu-img bitmap --disable "$img" four
  qemu-img bitmap --enable "$img" four
  check_clean "$img"
  bitmap_map "$img" merged | diff "$tmp/fine.after" -
  qemu-io -f qcow2 -c 'write 0 1' "$img" > /dev/null
  check_clean "$img"
done

# Bits that are all set, without a cluster of their own: they stay so.
make_bitmaps 512
read -r _ table data <<< "$(bitmaps where "$img" young)"
[ "$data" = 0 ]
header_patch "$img" "$table" Q 1
bitmap_map "$img" young > "$tmp/young.before"
still_bytes=$(bytes_of still)
broken_bytes=$(bytes_of broken)
start_nbdkit file="$img"
bitmaps change "$uri" "$tmp/changes" --ops 20
stop_nbdkit
check_clean "$img"
check_bitmaps

# Killed: in use, hence worth nothing, but nothing is wrong.
sample 1 512 64k 4k,lazy_refcounts=on
for cluster in "${sample[@]}"; do
  make_bitmaps "$cluster"
  still_bytes=$(bytes_of still)
  broken_bytes=$(bytes_of broken)
  start_nbdkit file="$img"
  hold_connection
  bitmaps change "$uri" "$tmp/changes" --ops 50
  kill9_nbdkit main
  drop_connections
  check_leaks_only "$img"
  [ "$(flags_of fine)" = auto,in-use ]
  [ "$(flags_of still)" = "" ]
  [ "$still_bytes" = "$(bytes_of still)" ]
  if bitmap_map "$img" fine > /dev/null; then fail "QEMU believes what is in use"; fi

  # We go on, and so does QEMU; they stay worth nothing.
  fine_bytes=$(bytes_of fine)
  start_nbdkit file="$img"
  bitmaps change "$uri" "$tmp/changes" --ops 50
  stop_nbdkit
  check_leaks_only "$img"
  [ "$fine_bytes" = "$(bytes_of fine)" ]
  [ "$still_bytes" = "$(bytes_of still)" ]
  for b in broken $followers young; do qemu-img bitmap --remove "$img" "${b%:*}"; done
  bitmap_map "$img" still | diff "$tmp/still.before" -
  qemu-img check -q -r leaks -f qcow2 "$img"
  check_clean "$img"
done

# Autoclear bits: that of bitmaps stays, unknown ones go.
make_bitmaps 64k
header_patch "$img" 88 Q '|0x40'
start_nbdkit file="$img"
nbdsh_run -c 'h.pwrite(b"x", 0)'
stop_nbdkit
[ "$(od -An -tx1 -j88 -N8 "$img" | tr -d ' ')" = 0000000000000001 ]
check_clean "$img"

# What can't be kept makes the image read-only, and no byte of it changes.
make_bitmaps 64k
cp "$img" "$tmp/good.qcow2"
read -r entry table data <<< "$(bitmaps where "$img" fine)"
[ "$data" != 0 ]
directory=$(bitmaps directory "$img")

spoil ()
{
  local pattern="$1" before
  shift
  cp "$tmp/good.qcow2" "$img"
  header_patch "$img" "$@"
  before=$(fingerprint "$img")
  start_nbdkit -v -- file="$img"
  nbdinfo --is readonly "$uri"
  nbdsh_run -c 'h.pread(65536, 0)'
  stop_nbdkit > /dev/null
  grep -E "served read-only: .*$pattern" "$tmp/main.log"
  [ "$before" = "$(fingerprint "$img")" ]
}

spoil 'bitmap ".*extra data' $((entry + 20)) I 8
spoil 'bitmap ".*extra data' $((entry + 20)) I 8 $((entry + 12)) I 6
spoil '"fine".*type is 2' $((entry + 16)) B 2
spoil '"fine".*flags are 0xa' $((entry + 12)) I 10
spoil '"fine".*granularity is 2\^8' $((entry + 17)) B 8
spoil '"fine".*granularity is 2\^32' $((entry + 17)) B 32
spoil '"fine".*does not fit' $((entry + 17)) B 9 $((entry + 8)) I 2
spoil 'name has 0 bytes|not contain the 8' $((entry + 18)) H 0
spoil '"fine".*table has 0 entries' $((entry + 8)) I 0
spoil '"fine".*table has 8193 entries' $((entry + 8)) I 8193
spoil '"fine".*table is at 0' "$entry" Q 0
spoil '"fine".*table is at' "$entry" Q '+512'
spoil '"fine".*table lies beyond' "$entry" Q $((1 << 40))
spoil '"fine".*table at .* overlaps the L1 table' "$entry" Q l1
spoil '"fine".*table entry is 0x2' "$table" Q 2
spoil '"fine".*table entry is' "$table" Q '|1'
spoil '"fine".*table entry is' "$table" Q '|0x8000000000000000'
spoil '"fine".*table entry is' "$table" Q '|512'
spoil '"fine".*data at .* beyond the end' "$table" Q $((1 << 40))
spoil '"fine".*data at .* overlaps the L2 table' "$table" Q l2
spoil '"fine".*data at .* overlaps the bitmap' "$table" Q "$table"
spoil 'does not contain the 7' "$directory" I 7
spoil 'does not contain the 9' "$directory" I 9
# Even those that are of no use.
read -r entry table data <<< "$(bitmaps where "$tmp/good.qcow2" broken)"
spoil '"broken".*table entry is 0x4' "$table" Q 4

# A bitmap whose cluster somebody else may use, too, is not written.
cp "$tmp/good.qcow2" "$img"
read -r entry table data <<< "$(bitmaps where "$img" fine)"
header_patch "$img" rb+$((data * 2 / 65536)) H +1
before=$(fingerprint "$img")
start_nbdkit file="$img"
if nbdsh_run -c 'h.pwrite(b"x", 0)'; then fail "it was written"; fi
grep 'of a bitmap has 2 references' "$tmp/main.log"
stop_nbdkit
[ "$before" = "$(fingerprint "$img")" ]
