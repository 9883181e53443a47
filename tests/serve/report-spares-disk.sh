#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# check-report= and stats= never replace a file of the disk, whatever a guest has written
# to it; nor each other's file, nor one of another program that begins with a brace.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# Reports as they really begin.
img="$tmp/a.qcow2"
make_image "$img" 1M
"$NBDKIT" -U - "$PLUGIN" "$img" check=quick check-report="$tmp/check.json" \
  stats="$tmp/stats.json" --run true
check_json="$(cat "$tmp/check.json")"
stats_json="$(cat "$tmp/stats.json")"

# spared PATTERN FILE PARAMETER...: refused, and the file has stayed the same one.
spared ()
{
  local pattern="$1" file="$2" before
  shift 2
  before="$(stat -c %d:%i "$file") $(cksum < "$file")"
  refused "$pattern" "$@"
  [ "$(stat -c %d:%i "$file") $(cksum < "$file")" = "$before" ]
}

# fill FILE TEXT: as a guest does, at the beginning of a disk.
fill ()
{
  truncate -s 1M "$1"
  printf %s "$2" | dd of="$1" conv=notrunc status=none
}

# The data file, a raw backing file below two images, and the data file of one.
qemu-img create -q -f qcow2 -o data_file="$tmp/data",data_file_raw=on "$tmp/x.qcow2" 1M
fill "$tmp/raw" ''
qemu-img create -q -f qcow2 -b "$tmp/raw" -F raw "$tmp/middle.qcow2"
qemu-img create -q -f qcow2 -b "$tmp/middle.qcow2" -F qcow2 "$tmp/top.qcow2"
qemu-img create -q -f qcow2 -b "$tmp/x.qcow2" -F qcow2 "$tmp/over.qcow2"
disk='a file of the disk|is not a report'
for text in '{' '' "$check_json" "$stats_json"; do
  fill "$tmp/data" "$text"
  fill "$tmp/raw" "$text"
  for mode in quick full repair; do
    spared "$disk" "$tmp/data" "$tmp/x.qcow2" check="$mode" check-report="$tmp/data"
    spared "$disk" "$tmp/data" "$tmp/over.qcow2" check="$mode" check-report="$tmp/data"
    spared "$disk" "$tmp/raw" "$tmp/top.qcow2" check="$mode" check-report="$tmp/raw"
  done
  spared "$disk" "$tmp/data" "$tmp/over.qcow2" stats="$tmp/data"
  spared "$disk" "$tmp/raw" "$tmp/top.qcow2" stats="$tmp/raw"
done
# Also files that are empty.
truncate -s 0 "$tmp/raw"
spared 'a file of the disk' "$tmp/raw" "$tmp/top.qcow2" stats="$tmp/raw"
spared 'a file of the disk' "$tmp/raw" "$tmp/top.qcow2" check=quick check-report="$tmp/raw"

# By other names; as given on the command line; before changes that are asked for; and if
# the image is corrupt.
fill "$tmp/data" "$check_json"
ln -s data "$tmp/alias"
ln "$tmp/data" "$tmp/hard"
for name in alias hard; do
  spared 'a file of the disk' "$tmp/data" "$tmp/x.qcow2" check=quick \
    check-report="$tmp/$name"
done
mv "$tmp/data" "$tmp/moved"
spared 'a file of the disk' "$tmp/moved" "$tmp/x.qcow2" data-file="$tmp/moved" \
  check=quick check-report="$tmp/moved" resize=2M
fill "$tmp/raw" "$check_json"
spared 'a file of the disk' "$tmp/raw" "$tmp/top.qcow2" check=quick \
  check-report="$tmp/raw" resize=2M
printf '\377\377' | dd of="$tmp/top.qcow2" bs=1 seek=$((0x30000)) conv=notrunc status=none
spared 'a file of the disk' "$tmp/raw" "$tmp/top.qcow2" check=quick \
  check-report="$tmp/raw"

# A new one does not stay.
new=("$tmp/new.qcow2" create=0 data-file="$tmp/D")
refused 'a file of the disk' "${new[@]}" stats="$tmp/D"
refused 'a file of the disk' "${new[@]}" check=quick check-report="$tmp/D"
[ ! -e "$tmp/new.qcow2" ]
[ ! -e "$tmp/D" ]

# Descriptors that nobody gave us.
for ((fd = 3; fd < 16; fd++)); do
  [ -e "/proc/$$/fd/$fd" ] ||
    spared "$disk|cannot write" "$img" "$img" check=quick check-report="/dev/fd/$fd"
done

# Other programs' files, the other report, and one name for both.
echo '{ "precious": 1 }' > "$tmp/conf.json"
spared 'is not a report' "$tmp/conf.json" "$img" stats="$tmp/conf.json"
spared 'is not a report' "$tmp/conf.json" "$img" check=quick check-report="$tmp/conf.json"
spared 'is not a report' "$tmp/check.json" "$img" stats="$tmp/check.json"
spared 'is not a report' "$tmp/stats.json" "$img" check=quick \
  check-report="$tmp/stats.json"
mkdir "$tmp/dir"
ln -s new.json "$tmp/link.json"
for name in new.json dir/../new.json ./link.json; do
  refused 'same file' "$img" stats="$tmp/new.json" check=quick check-report="$tmp/$name"
  [ ! -e "$tmp/new.json" ]
done

# A name as long as the filesystem has them.
long="$tmp/$(printf 'x%.0s' {1..255})"
for ((i = 0; i < 2; i++)); do
  "$NBDKIT" -U - "$PLUGIN" "$img" check=quick check-report="$long" --run true
done
[ "$(cat "$long")" = "$check_json" ]
