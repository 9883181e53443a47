#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Zero requests: with and without permission to punch holes, with the fast-zero flag, and
# on version 2 images.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# Is there a host cluster behind the guest's first bytes?
has_host_cluster ()
{
  qemu-img map -U -f qcow2 --output=json "$1" |
    "$python" -c 'import json, sys; sys.exit("offset" not in json.load(sys.stdin)[0])'
}

img="$tmp/a.qcow2"
for compat in v2 v3; do
  make_image "$img" 4M "compat=$compat"
  start_nbdkit file="$img"
  nbdinfo --can zero "$uri"
  nbdinfo --can fast-zero "$uri"
  # Leave to make a hole.
  nbdsh_run -c 'h.pwrite(b"x" * 262144, 0); h.flush(); h.zero(131072, 0)' \
            -c 'assert h.pread(262144, 0) == bytes(131072) + b"x" * 131072'
  stop_nbdkit
  check_clean "$img"
  if has_host_cluster "$img"; then fail "no hole was made"; fi

  # No leave: the space stays reserved.
  start_nbdkit file="$img"
  nbdsh_run -c 'h.pwrite(b"y" * 262144, 0); h.flush()' \
            -c 'h.zero(131072, 0, nbd.CMD_FLAG_NO_HOLE)' \
            -c 'assert h.pread(262144, 0) == bytes(131072) + b"y" * 131072'
  stop_nbdkit
  check_clean "$img"
  # (Version 2 has no way to say so, and QEMU gives it back too.)
  [ "$compat" = v2 ] || has_host_cluster "$img"

  # Nothing aligned, with all flags; a fast zero that is refused changes nothing.
  start_nbdkit file="$img"
  nbdsh_run -c - <<PY
import errno, itertools, random
rng = random.Random(1)
data = rng.randbytes(1 << 20)
for no_hole, fast, fua in itertools.product((0, 1), repeat=3):
    flags = (no_hole * nbd.CMD_FLAG_NO_HOLE | fast * nbd.CMD_FLAG_FAST_ZERO |
             fua * nbd.CMD_FLAG_FUA)
    for offset, count in ((0, 65536), (65536, 131072), (100, 200), (65000, 1000),
                          (65535, 65538), (1, (1 << 20) - 2)):
        model = bytearray(data)
        h.pwrite(data, 0)
        try:
            h.zero(count, offset, flags)
            model[offset:offset + count] = bytes(count)
        except nbd.Error as e:
            assert fast and e.errnum == errno.ENOTSUP, e.errnum
            # Whole clusters can always be zeroed fast where no data are below
            # (version 2 cannot do that and keep the space).
            assert offset % 65536 or count % 65536 or \
                no_hole and "$compat" == "v2", (offset, count, flags)
        assert h.pread(1 << 20, 0) == model, (offset, count, flags)
# Fast where it reads as zeros already.
h.zero(1 << 20, 0)
h.zero(1 << 20, 0, nbd.CMD_FLAG_FAST_ZERO)
h.zero(1000, 3000, nbd.CMD_FLAG_FAST_ZERO)
PY
  stop_nbdkit
  check_clean "$img"
done

# Over a backing file, version 2 has no way to say "zero": it is written.
random_file "$tmp/base.raw" $((1 << 20))
for compat in v2 v3; do
  make_image "$img" 1M "compat=$compat,backing_file=base.raw,backing_fmt=raw"
  start_nbdkit file="$img"
  nbdsh_run -c - <<PY
import errno
model = bytearray(open("$tmp/base.raw", "rb").read())
def check():
    assert h.pread(1 << 20, 0) == model
def zero(count, offset, flags=0):
    h.zero(count, offset, flags)
    model[offset:offset + count] = bytes(count)
    check()
check()
zero(65536, 0)
zero(200000, 100000)
zero(100, 400000, nbd.CMD_FLAG_NO_HOLE)
zero(65536, 655360, nbd.CMD_FLAG_NO_HOLE)
try:
    zero(131072, 786432, nbd.CMD_FLAG_FAST_ZERO)
    assert "$compat" == "v3"
except nbd.Error as e:
    assert "$compat" == "v2" and e.errnum == errno.ENOTSUP
    check()
PY
  nbdsh_run -c "open('$tmp/model.raw', 'wb').write(h.pread(1 << 20, 0))"
  stop_nbdkit
  check_clean "$img"
  same_as_raw "$img" "$tmp/model.raw"
done
