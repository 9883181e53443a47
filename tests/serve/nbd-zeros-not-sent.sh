#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A write of 4K into a new cluster of 64K, of an image on an NBD server: does the plugin
# send 4K, or all of the cluster?  All of it only if nothing else makes the rest zeros:
#
#   the server says that there are zeros    4K
#   it can zero at once                     4K, whatever was there
#   neither                                 64K
#
# In the first two cases, a write and a flush take one flush of the server.  Where there
# are only zeros, it is asked about many new clusters at once.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
for filter in log nozero noextents; do
  requires nbdkit --filter=$filter memory 1M --version
done

writes=50

# An image, and more space behind it, with zeros or something else.
qemu-img create -q -f qcow2 "$tmp/zeros" 64M
cp "$tmp/zeros" "$tmp/data"
truncate -s 80M "$tmp/zeros"
head -c $((79 << 20)) /dev/zero | tr '\0' x | dd of="$tmp/data" bs=1M seek=1 conv=notrunc \
  iflag=fullblock status=none

# far IMAGE [NBDKIT-OPTION...]: sends some of its requests away, to far.log.
far ()
{
  local image="$1"

  shift
  rm -f "$tmp/log"
  PLUGIN=memory start_nbdkit_as far --filter=log "$@" -- 82M logfile="$tmp/log"
  far="$uri"
  nbdcopy "$tmp/$image" "$far"
}

# sent LEAST MOST MOST-FLUSHES MOST-QUESTIONS: the writes, and between how many bytes, in
# how many flushes, the remote server receives for them, and how often it is asked for
# zeros.
sent ()
{
  start_nbdkit "$far" lock=false checkpoint-interval=0
  nbdsh_run -c - <<PY
import random, re
def count():
    sent = flushes = questions = 0
    for line in open("$tmp/log"):
        if " Write id=" in line and "count=" in line:
            sent += int(re.search("count=(0x[0-9a-f]+)", line)[1], 16)
        flushes += " Flush id=" in line and line.rstrip().endswith("...")
        questions += " Extents id=" in line and line.rstrip().endswith("...")
    return sent, flushes, questions
random.seed(1)
places = [at << 16 for at in random.sample(range(1024), $writes)]
h.pwrite(b"first", 0)           # tables, counts
h.flush()
sent, flushes, _ = count()
for at in places:
    h.pwrite(b"x" * 4096, at + 8192)
    h.flush()
now, flushes_now, questions = count()
print("sent %d bytes, %d flushes, asked %d times"
      % (now - sent, flushes_now - flushes, questions))
assert $1 <= now - sent <= $2
assert flushes_now - flushes <= $3
assert questions <= $4
for at in places:
    assert h.pread(65536, at) == bytes(8192) + b"x" * 4096 + bytes(65536 - 12288)
PY
  stop_nbdkit
  nbdcopy "$far" "$tmp/after"
  stop_nbdkit far
  qemu-img check -q "$tmp/after" || fail "qemu-img check"
}

# (Each flush also writes a slice of 4K, and perhaps counts.)
parts=$((writes * 4096)) whole=$((writes * 65536))

far zeros --filter=nozero
sent $parts $((3 * parts)) $((writes + 4)) 1
far data
sent $parts $((3 * parts)) $((writes + 4)) 4
far data --filter=noextents
sent $parts $((3 * parts)) $((writes + 4)) 0
far data --filter=nozero
sent $whole $((whole + 3 * parts)) $((2 * writes + 4)) 4
