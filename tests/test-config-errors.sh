#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Wrong parameters are refused with one line that names them.

. "${srcdir:-$(dirname "$0")}/functions.sh"
requires "$NBDKIT" --version
requires qemu-img --version

img="$tmp/a.qcow2"
make_image "$img" 1M

refused 'file'
refused 'nosuchfile' file="$tmp/nosuchfile"
refused 'nosuchfile' "$tmp/nosuchfile"
refused "$tmp" file="$tmp"
refused '/dev/null' file=/dev/null
refused 'file|path' file=
refused 'file' file="$img" file="$img"

# nbdkit's own functions for sizes and booleans say what is wrong, but not where: hence a
# second line.
export REFUSED_LINES=2
for value in abc -1 1X 4k4 '' 99999999999999999999 0x; do
  refused 'l2-cache' file="$img" l2-cache="$value"
  refused 'l2-slice' file="$img" l2-slice="$value"
done
for value in 0 1 256 511 513 3000 4095 4M; do
  refused 'l2-slice' file="$img" l2-slice="$value"
done
for value in '' maybe 2; do
  refused 'untrusted' file="$img" untrusted="$value"
done
for value in '' auto 2; do
  refused 'lock' file="$img" lock="$value"
done
unset REFUSED_LINES
for value in '' on off yes UNMAP unmapp 1; do
  refused 'discard' file="$img" discard="$value"
done
for value in '' yes ON unmapp 1 ignore; do
  refused 'detect-zeroes' file="$img" detect-zeroes="$value"
done
for value in '' yes ON true 9; do
  refused 'compress' file="$img" compress="$value"
done
for value in '' on writeback NONE directsync; do
  refused 'cache' file="$img" cache="$value"
done
for value in '' vmdk QCOW2 auto; do
  refused 'backing-format' file="$img" backing-format="$value"
done
refused 'backing|path' file="$img" backing=
refused 'nosuchbase' file="$img" backing="$tmp/nosuchbase" backing-format=raw
refused 'data-file|path' file="$img" data-file=
refused 'data-file= was given twice' file="$img" data-file=deny data-file=deny
refused 'no external data file' file="$img" data-file="$img"
refused 'untrusted.*data-file' file="$img" data-file="$img" untrusted=true
refused 'nosuchkey' file="$img" nosuchkey=1
refused 'l2cache' file="$img" l2cache=1M
refused 'L2-CACHE' file="$img" L2-CACHE=1M
# Not ours.
refused 'snapshot' file="$img" snapshot=one
refused 'create' file="$img" create=1M

# And these are right.
# shellcheck disable=SC2086
for good in l2-cache=16M l2-cache=0 l2-slice=512 l2-slice=64K l2-slice=2M untrusted=true \
            untrusted=false untrusted=0 discard=unmap discard=ignore detect-zeroes=off \
            detect-zeroes=on detect-zeroes=unmap compress=on compress=off cache=default \
            cache=none lock=on lock=off backing=follow backing=deny data-file=follow \
            data-file=deny; do
  "$NBDKIT" -U - --run 'echo SERVED' "$PLUGIN" file="$img" $good > "$tmp/out"
  grep -q SERVED "$tmp/out"
done
