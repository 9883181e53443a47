#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# copy-on-read=true: data that clients read from lower layers is stored in the top image,
# once; zeros need no space; bitmaps record nothing; a full host is no error for readers;
# with -r nothing is written.  Under random load from several connections the contents of
# the disk are correct.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

random_file "$tmp/base.raw" $((6 << 20))
truncate -s 12M "$tmp/base.raw"
head -c 1M /dev/zero >> "$tmp/base.raw"
img="$tmp/a.qcow2"

overlay ()
{
  rm -f "$img"
  make_image "$img" 13M "backing_file=base.raw,backing_fmt=raw${1:+,$1}"
}

# How many clusters does the image have of its own?
own_clusters ()
{
  qemu-img check -U -f qcow2 --output=json "$img" |
    "$python" -c 'import json, sys
print(json.load(sys.stdin).get("allocated-clusters", 0))'
}

sample 3 cluster_size=64k cluster_size=4k cluster_size=512 cluster_size=2M \
  compat=v2,cluster_size=64k extended_l2=on,cluster_size=16k
for create in "${sample[@]}"; do
  overlay "$create"
  [ $create != cluster_size=64k ] || qemu-img bitmap --add "$img" monday
  cluster="${create##*=}"
  # A byte here and there fills whole clusters ...
  start_nbdkit file="$img" copy-on-read=true
  nbdsh_run -c 'h.pread(1, 100)' -c 'h.pread(2, (4 << 20) - 1)' -c 'h.pread(512, 8 << 20)'
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/base.raw"
  bytes=$(numfmt --from=iec "${cluster^^}")
  [ "$(own_clusters)" = 3 ]
  # ... and all of the disk all that is not zeros.
  start_nbdkit file="$img" copy-on-read=true
  model verify "$uri" "$tmp/base.raw"
  model verify "$uri" "$tmp/base.raw"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/base.raw"
  [ "$(own_clusters)" -ge $(((6 << 20) / bytes)) ]
  [ "$(own_clusters)" -le $(((7 << 20) / bytes + 8)) ]
  if [ $create = cluster_size=64k ]; then
    nothing_marked "$img" monday
  fi
  # What is below is not needed any more.
  qemu-img rebase -u -f qcow2 -b '' "$img"
  same_as_raw "$img" "$tmp/base.raw"

  # With all kinds of requests at once.
  overlay "$create"
  cp "$tmp/base.raw" "$tmp/model.raw"
  start_nbdkit file="$img" copy-on-read=true
  # (Nobody knows what a trim does in version 2 over a backing file.)
  weights=pread=40,cache=5
  case $create in *v2*) weights+=,trim=0 ;; esac
  model random "$uri" "$tmp/model.raw" --seconds 0.7 --connections 4 \
    --cluster "$bytes" --weights $weights
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
done

# NBD's cache command is a read for that.
overlay
start_nbdkit file="$img" copy-on-read=true
nbdsh_run -c 'h.cache(13 << 20, 0)'
stop_nbdkit
check_clean "$img"
qemu-img rebase -u -f qcow2 -b '' "$img"
same_as_raw "$img" "$tmp/base.raw"

# With -r, and where it is not asked for, nothing is written.
overlay
fingerprint "$img" > "$tmp/before"
start_nbdkit -r -- file="$img" copy-on-read=true
model verify "$uri" "$tmp/base.raw"
stop_nbdkit
fingerprint "$img" | cmp - "$tmp/before"
start_nbdkit file="$img"
model verify "$uri" "$tmp/base.raw"
stop_nbdkit
[ "$(own_clusters)" = 0 ]
refused 'untrusted=true cannot be used with copy-on-read=true' \
  "$img" copy-on-read=true untrusted=true

# No space: who reads does not notice.
(
  ulimit -f 2000
  trap '' XFSZ
  start_nbdkit file="$img" copy-on-read=true
  model verify "$uri" "$tmp/base.raw"
  model verify "$uri" "$tmp/base.raw"
  server_lives main
  kill -TERM "$nbdkit_pid"
  wait "$nbdkit_pid" || :
)
grep 'copy-on-read: cannot store data in the image: No space' "$tmp/main.log"
# It does not try, and tell, again and again.
[ "$(grep -c 'cannot store data' "$tmp/main.log")" -le 3 ]
check_clean "$img"
same_as_raw "$img" "$tmp/base.raw"
[ "$(own_clusters)" -gt 10 ]
