#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# apply-changes writes what the source holds, zeros too, and leaves the destination as it is
# where the source has holes.  If the source does not say where those are, nothing becomes
# zeros: the destination stays as it was.  So it does if it is read-only or too small.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

# A source of 4 MiB: data, zeros that were written, a hole, data in which there are zeros,
# and a hole.
cat > extents <<'SH'
echo 0 1M
echo 1M 512k zero
echo 1536k 1536k hole,zero
echo 3M 512k
echo 3584k 512k hole
SH
head -c 1M /dev/urandom > part
{ cat part; head -c 2M /dev/zero; head -c 128k part; head -c 256k /dev/zero
  head -c 128k part; head -c 512k /dev/zero; } > source.raw
head -c 5M /dev/zero | tr '\0' o > older.raw
cp older.raw want.raw
copy ()
{
  dd if=source.raw of=want.raw bs=64k conv=notrunc status=none skip="$1" seek="$1" count="$2"
}
copy 0 24
copy 48 8

# apply FILE [-r]: applies the source to FILE, which -r makes read-only.  $extents says what
# is a hole; the server of the source has the option $source_option.
extents="$tmp/extents"
source_option=
apply ()
{
  local file="$1" mode="${2-}"

  cat > inner <<SH
'$NBDKIT' -U - $mode file '$file' --run "'$IMG' apply-changes '\$uri' \"\\\$uri\""
SH
  # shellcheck disable=SC2086
  "$NBDKIT" $source_option -U - eval get_size='echo 4M' can_extents=true \
    extents="sh '$extents'" \
    pread="dd if='$tmp/source.raw' iflag=skip_bytes,count_bytes skip=\$4 count=\$3 \
      status=none" --run ". '$tmp/inner'"
}

# refused PATTERN FILE...: as apply, which fails in one line, and changes nothing.
refused ()
{
  local pattern="$1"
  shift
  cp "$1" before
  if apply "$@" > out 2> err; then fail "not refused: $pattern"; fi
  cat out err
  grep -E "^nbdkit-qcow2-img: .*$pattern" err
  cmp before "$1"
}

cp older.raw here.raw
apply here.raw > out
cmp here.raw want.raw
grep -x '1310720 bytes written, 786432 zeroed' out

cp older.raw here.raw
refused 'destination is read-only' here.raw -r
head -c 3M older.raw > small.raw
refused 'destination is smaller than the source: 3145728 < 4194304 bytes' small.raw
source_option=--no-sr
refused 'cannot find holes of .*: Operation not supported' here.raw
source_option=
echo 'echo EIO the disk is broken >&2; exit 1' > broken
extents="$tmp/broken"
refused 'cannot find holes of .*: Input/output error' here.raw
img_refused 'here.raw: not an NBD URI' apply-changes "$tmp/here.raw" "$tmp/here.raw"
