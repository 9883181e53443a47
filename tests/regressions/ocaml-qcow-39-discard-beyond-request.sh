#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# ocaml-qcow, pull request 39: a discard takes more sectors than it was asked to.
#
# (It was the disk of Docker for Mac.)  What was beside the range was lost.
#
# https://github.com/mirage/ocaml-qcow/pull/39
# Broken: trim-beyond-request

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
for options in cluster_size=64k cluster_size=512 extended_l2=on; do
  rm -f "$img"
  make_image "$img" 2M "$options"
  random_file "$tmp/data.raw" $((2 << 20))
  start_nbdkit file="$img"
  nbdcopy "$tmp/data.raw" "$uri"
  export data="$tmp/data.raw"
  nbdsh_run -c - <<'PY'
import os, random
with open(os.environ["data"], "r+b") as f:
    data = bytearray(f.read())
    r = random.Random(39)
    for i in range(60):
        # A sector, some clusters and parts of others, and whole clusters.
        offset = r.randrange(4096) * 512
        count = min(r.choice([512, r.randrange(1, 600) * 512, 131072]),
                    len(data) - offset)
        if i % 10 == 0:
            offset &= ~65535
        h.trim(count, offset)
        got = h.pread(len(data), 0)
        for at in range(0, len(data), 512):
            old, new = data[at:at + 512], got[at:at + 512]
            inside = offset <= at < offset + count
            # What is asked for may go, or stay.
            if new != old and not (inside and new == bytes(512)):
                raise SystemExit("a trim of %d bytes at %d changes what is at %d" %
                                 (count, offset, at))
        data[:] = got
    f.seek(0)
    f.write(data)
PY
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/data.raw"
done
