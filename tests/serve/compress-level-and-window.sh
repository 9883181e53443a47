#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# compress-level= and compress-window=: a higher level and a longer window make images
# smaller, and QEMU reads all of them, with clusters of any size.  Levels that the
# compression type of the image does not have are refused.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version

# Text whose lines repeat, near and far.
"$python" - "$tmp/disk.raw" <<'PY'
import random, sys
rng = random.Random(7)
beginnings = [rng.randbytes(4) for _ in range(4)]
words = [rng.choice(beginnings) + rng.randbytes(rng.randint(2, 9)) for _ in range(300)]
lines = [b"".join(rng.choices(words, k=20)) for _ in range(600)]
with open(sys.argv[1], "wb") as f:
    while f.tell() < 4 << 20:
        f.write(rng.choice(lines))
    f.truncate(4 << 20)
PY

img="$tmp/a.qcow2"

# packed CREATE-OPTIONS PARAMETER...: prints how large the image is.
packed ()
{
  make_image "$img" 4M "$1"
  start_nbdkit file="$img" compress=on "${@:2}" >&2
  nbdcopy --request-size=2097152 "$tmp/disk.raw" "$uri" >&2
  stop_nbdkit >&2
  check_clean "$img" >&2
  same_as_raw "$img" "$tmp/disk.raw" >&2
  file_size "$img"
}

for cluster in 64k 512k 2M; do
  short=$(packed "cluster_size=$cluster" compress-window=4K)
  default=$(packed "cluster_size=$cluster")
  long=$(packed "cluster_size=$cluster" compress-window=32K)
  echo "clusters of $cluster: $short, $default, $long"
  [ "$short" = "$default" ] || fail "the default is not 4K"
  # (Two clusters of 2M take two, however small they are.)
  [ $cluster = 2M ] || [ "$long" -lt "$short" ] || fail "the long window does not help"
done
fast=$(packed cluster_size=64k compress-level=1)
slow=$(packed cluster_size=64k compress-level=9)
best=$(packed cluster_size=64k compress-window=32K compress-level=12)
echo "levels: $fast, $slow, $best"
[ "$slow" -lt "$fast" ]
[ "$best" -lt "$slow" ]

make_image "$img" 1M
refused 'highest level for zlib with a window of 4K is 9' file="$img" \
  compress=on compress-level=10
refused 'highest level for zlib with a window of 32K is 12' file="$img" \
  compress=on compress-level=13 compress-window=32K
for level in 0 23 -1 high; do
  refused compress-level file="$img" compress=on compress-level=$level
done
refused 'compress-level.*compress=on' file="$img" compress-level=3
refused 'compress-window.*compress=on' file="$img" compress-window=32K
refused 'compress-window.*4K' file="$img" compress=on compress-window=8K
if "$NBDKIT" "$PLUGIN" --dump-plugin | grep qcow2_zstd=yes > /dev/null; then
  fast=$(packed compression_type=zstd compress-level=1)
  slow=$(packed compression_type=zstd compress-level=19)
  echo "zstd: $fast, $slow"
  [ "$slow" -lt "$fast" ]
fi
