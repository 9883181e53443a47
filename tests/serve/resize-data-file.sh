#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# resize= enlarges a disk with an external data file, as qemu-img resize does: added space
# reads as zeros, whatever the data file contains there, and a raw data file remains a raw
# disk image.  A resize that is not possible changes nothing.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

img="$tmp/a.qcow2" data="$tmp/a.data"

# not_done PATTERN PARAMETER...: refused, and neither file has changed.
not_done ()
{
  local before
  before="$(fingerprint "$data")"
  refused_untouched "$1" "$img" "${@:2}"
  [ "$(fingerprint "$data")" = "$before" ]
}

# (Which of them are zeros QEMU learns from the host, now or later.)
mapped_bytes ()
{
  qemu-img map --output=json -f qcow2 "$1" | "$python" -c '
import json, sys
print(sum(e["length"] for e in json.load(sys.stdin) if "offset" in e))'
}

# judge: the disk, and a raw data file, are $tmp/raw.
judge ()
{
  check_clean "$img"
  same_as_raw "$img" "$tmp/raw"
  if [ "$raw" = on ]; then
    cmp -n "$(file_size "$tmp/raw")" "$tmp/raw" "$data"
    # As programs see it that know nothing of the image; QEMU keeps the promise, too.
    [ "$(od -An -tx1 -j88 -N8 "$img" | tr -d ' ')" = 0000000000000002 ]
  fi
}

for raw in off on; do
  for options in cluster_size=512 cluster_size=64k extended_l2=on,cluster_size=16k; do
    rm -f "$img" "$data"
    qemu-img create -q -f qcow2 -o "data_file=$data,data_file_raw=$raw,$options" \
      "$img" 1000448
    random_file "$tmp/raw" 1000448
    start_nbdkit "$img"
    nbdcopy "$tmp/raw" "$uri"
    stop_nbdkit main
    # What others have left behind the end must not appear.
    head -c 600000 "$tmp/raw" >> "$data"
    start_and_end "$img" resize=1001472
    truncate -s 1001472 "$tmp/raw"
    judge
    head -c 600000 "$tmp/raw" >> "$data"
    cp "$img" "$tmp/b.qcow2"
    start_and_end "$img" resize=3M
    truncate -s 3M "$tmp/raw"
    judge
    [ "$(file_size "$data")" = $((3 << 20)) ]
    # QEMU maps as much.
    qemu-img resize -q "$tmp/b.qcow2" 3M
    [ "$(mapped_bytes "$img")" = "$(mapped_bytes "$tmp/b.qcow2")" ]

    # The new part is used: a little of a cluster, where there was something.
    start_nbdkit "$img"
    nbdsh_run -c 'h.pwrite(b"n" * 100, 1200007); h.pwrite(b"e" * 70000, 2500000)' \
      -c 'h.zero(100000, 2530000); h.flush()'
    stop_nbdkit main
    "$python" - "$tmp/raw" <<'EOF'
import sys
with open(sys.argv[1], "r+b") as f:
    for offset, what in (1200007, b"n" * 100), (2500000, b"e" * 70000), \
            (2530000, bytes(100000)):
        f.seek(offset)
        f.write(what)
EOF
    judge
    # The data file may be longer: it is not cut.
    truncate -s 20M "$data"
    start_and_end "$img" resize=+9M
    truncate -s 12M "$tmp/raw"
    judge
    [ "$(file_size "$data")" = $((20 << 20)) ]
  done
done

not_done 'cannot be shrunk' resize=1M shrink=true
not_done 'preallocation cannot be used' resize=40M preallocation=full
not_done 'external data file' snapshot-create=s

# With a backing file that is longer than the disk, and with bitmaps.
rm -f "$img" "$data"
random_file "$tmp/base" $((4 << 20))
raw=off
qemu-img create -q -f qcow2 -o "data_file=$data" -b base -F raw "$img" 1000448
qemu-img bitmap --add -g 512 "$img" b
start_and_end "$img" resize=9M
head -c 1000448 "$tmp/base" > "$tmp/raw"
truncate -s 9M "$tmp/raw"
judge
qemu-img info -f qcow2 "$img" | grep 'name: b'

# A data file that can't become so long: nothing has happened.
rm -f "$img" "$data"
qemu-img create -q -f qcow2 -o "data_file=$data" "$img" 1M
before="$(sha256sum < "$img")"
if (ulimit -f 4096; trap '' XFSZ; start_and_end "$img" resize=1G); then
  fail "it was resized"
fi
[ "$(sha256sum < "$img")" = "$before" ]
check_clean "$img"
