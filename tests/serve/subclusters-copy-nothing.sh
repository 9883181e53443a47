#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The purpose of extended L2 entries: a write of whole subclusters over a backing file
# reads nothing from it, and writes only its own data.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires strace -f -o /dev/null true

random_file "$tmp/base.raw" $((4 << 20))
img="$tmp/a.qcow2"
make_image "$img" 4M \
  extended_l2=on,cluster_size=128k,backing_file=base.raw,backing_fmt=raw

NBDKIT_WRAPPER="strace -f -qq -y -o $tmp/trace -e trace=pread64,preadv,preadv2,pwrite64,pwritev,pwritev2,ftruncate" \
  start_nbdkit -t 1 -- file="$img"
# A fresh cluster, twice in the same one, and over the border of two; then something
# that shows where the data end.
nbdsh_run -c 'h.pwrite(b"a" * 4096, 8192)' -c 'h.pwrite(b"b" * 8192, 65536)' \
  -c 'h.pwrite(b"c" * 4096, 65536)' -c 'h.pwrite(b"d" * 8192, 262144 - 4096)' \
  -c 'h.flush()'
cp "$tmp/trace" "$tmp/trace.written"
kill_traced
check_leaks_only "$img"

cat "$tmp/trace.written"
if grep -E 'pread.*base\.raw' "$tmp/trace.written" | grep -v ' = 0$'; then
  fail "the backing file was read"
fi
# Data were written in these pieces; metadata is written by the flush alone.
sed -n -E 's/.*pwritev?2?(64)?\(.*"([abcd])\2.* = ([0-9]+)$/\2 \3/p' \
  "$tmp/trace.written" > "$tmp/data"
diff -u - "$tmp/data" <<'EOM'
a 4096
b 8192
c 4096
d 8192
EOM

# A part of a subcluster: the rest of it is filled in, not that of the cluster.
NBDKIT_WRAPPER="strace -f -qq -y -o $tmp/trace -e trace=pread64,preadv,preadv2" \
  start_nbdkit -t 1 -- file="$img"
nbdsh_run -c 'h.pwrite(b"e" * 512, (1 << 20) + 1024)' -c 'h.flush()'
cp "$tmp/trace" "$tmp/trace.written"
kill_traced
check_leaks_only "$img"
cat "$tmp/trace.written"
sed -n -E 's/.*pread.*base\.raw.* = ([1-9][0-9]*)$/\1/p' "$tmp/trace.written" |
  awk '{ n += $1 } END { print n; exit n != 4096 - 512 }'
