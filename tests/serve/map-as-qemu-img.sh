#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# map= writes what qemu-img map --output=json prints, line for line: for images with random
# mixtures of features, and for those in which offsets, holes and depths are less obvious.
# A faulty entry is an error, and then there is no report.
#
# Environment: SEED repeats one mixture; SECONDS_TO_RUN (default 3, or 8).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version
cd "$tmp"

# Older versions of QEMU do not tell what is compressed.
make_image a.qcow2 64k
if qemu-img map --output=json a.qcow2 | grep -q '"compressed"'; then
  old=''
else
  old='s/, "compressed": [a-z]*//'
fi

# compare_node NODE FILE [PARAMETER...]: QEMU opens the image as NODE says.
#
# Space that a file system has allocated and not written is a hole for lseek until the
# kernel reads it ahead, and again when it drops that from memory.  So what one program
# reads can change what the next one is told: three times different is a difference.
compare_node ()
{
  local try
  for try in 1 2 3; do
    qemu-img map --output=json --object "secret,id=s,data=open sesame" "$1" > qemu
    "$NBDKIT" -U - "$PLUGIN" "${@:2}" map=ours serve=false --run true
    if sed "$old" ours | diff -u qemu -; then return 0; fi
  done
  return 1
}

compare ()
{
  compare_node "$@" "$@"
}

# --- mixtures ---

features="luks aes extended_l2 data_file compress"
if "$NBDKIT" "$PLUGIN" --dump-plugin | grep '^qcow2_zstd=yes$' > /dev/null; then
  features+=" zstd"
fi
export FEATURES="$features"
seed="${SEED:-}"
mixtures=0

one_mixture ()
{
  local dir="$tmp/mixture" node

  rm -rf "$dir"
  mkdir "$dir"
  export SEED="${seed:-$RANDOM$RANDOM}"
  "$python" "$srcdir/lib/mixture.py" make "$dir" "$dir/spec"
  echo "MIXTURE $("$python" "$srcdir/lib/mixture.py" show "$dir/spec" line)"
  node="$("$python" "$srcdir/lib/mixture.py" show "$dir/spec" node)"
  compare_node "$node" "$dir/top.qcow2"
  mixtures=$((mixtures + 1))
}

seconds=3
if long_suite; then seconds=8; fi
end=$((SECONDS + ${SECONDS_TO_RUN:-$seconds}))
while :; do
  one_mixture
  if [ -n "$seed" ] || [ "$SECONDS" -ge "$end" ]; then break; fi
done
echo "$mixtures mixtures"

# --- single features ---

for size in 0 512 20972032; do
  rm a.qcow2
  make_image a.qcow2 $size
  compare a.qcow2
done

for options in compat=v2 compat=v3 cluster_size=512 cluster_size=2M extended_l2=on \
               extended_l2=on,cluster_size=1M; do
  make_image a.qcow2 20972032 "$options"
  io a.qcow2 'write -P 1 0 100k' 'write -P 2 1M 1' 'write -c -P 3 6M 2M' \
    'write -P 4 20971519 513' 'write -P 5 10M 1M'
  compare a.qcow2
  io a.qcow2 'write -z 4M 512k' 'write -z -u 7M 512k' 'write -z 15M 1M' \
    'discard 5M 128k' 'discard 10M 256k'
  compare a.qcow2
  qemu-img snapshot -c s a.qcow2
  io a.qcow2 'write -P 5 5500k 70k' 'write -z 1 1'
  compare a.qcow2
done

# Clusters in use that are holes, with and without subclusters, in a data file.
for options in preallocation=metadata preallocation=falloc preallocation=full \
               preallocation=metadata,extended_l2=on \
               data_file=d,preallocation=metadata data_file=d data_file=e,data_file_raw=on \
               data_file=d,extended_l2=on data_file=d,cluster_size=4k; do
  rm -f d e
  make_image a.qcow2 8M "$options"
  compare a.qcow2
  io a.qcow2 'write -P 1 1M 200k' 'write -z 1100k 64k' 'write -z -u 2M 64k' \
    'write -P 2 2050k 2k' 'discard 1M 64k'
  compare a.qcow2
done

# Chains: raw files that end anywhere, shorter and longer layers, subclusters.
for bytes in 0 1 1000 1048576 1048577 3145728; do
  random_file base.raw 700000
  truncate -s $bytes base.raw
  if [ $bytes -gt 2000000 ]; then fallocate -p -o 65536 -l 131072 base.raw; fi
  for options in compat=v2 extended_l2=on extended_l2=on,preallocation=metadata; do
    make_image a.qcow2 8M "backing_file=base.raw,backing_fmt=raw,$options"
    compare a.qcow2
    io a.qcow2 'write -P 1 500k 20k' 'write -P 2 4M 3k' 'write -z 600k 10k' \
      'write -z 3072k 3k' 'discard 704k 64k' 'write -P 3 704k 6k'
    compare a.qcow2
    rm -f b.qcow2
    make_image b.qcow2 10M "backing_file=a.qcow2,backing_fmt=qcow2,cluster_size=16k"
    io b.qcow2 'write -P 1 576k 64k' 'write -z 768k 64k' 'discard 512k 64k'
    compare b.qcow2
    make_image c.qcow2 2097664 "backing_file=b.qcow2,backing_fmt=qcow2"
    compare c.qcow2
  done
done

# --- served, and after changes ---

qemu-img map --output=json c.qcow2 > qemu
# shellcheck disable=SC2016
"$NBDKIT" -U - "$PLUGIN" c.qcow2 map=ours --run 'nbdinfo --size "$uri"'
sed "$old" ours | diff -u qemu -
for serve in true false; do
  make_image a.qcow2 1M
  "$NBDKIT" -U - "$PLUGIN" a.qcow2 resize=3M map=ours serve=$serve --run true
  qemu-img map --output=json a.qcow2 > qemu
  sed "$old" ours | diff -u qemu -
done
rm a.qcow2
"$NBDKIT" -U - "$PLUGIN" a.qcow2 create=1M preallocation=full map=/dev/stdout serve=false \
  --run true > ours
qemu-img map --output=json a.qcow2 > qemu
sed "$old" ours | diff -u qemu -

# --- errors ---

make_image a.qcow2 10M
io a.qcow2 'write -P 1 0 1M' 'write -P 1 3M 64k'
cp ours before
header_patch a.qcow2 l2+80 Q 0x8000000000050200
refused 'entry 0x8000000000050200 for guest offset 655360 is invalid' a.qcow2 map=ours \
  serve=false
cmp ours before
make_image a.qcow2 10M backing_file=missing,backing_fmt=raw -u || :
qemu-img create -q -u -f qcow2 -b missing -F raw a.qcow2 10M
refused 'cannot open' a.qcow2 map=ours serve=false
echo precious > q
refused 'map=.*not a report' c.qcow2 map=q serve=false
refused 'map=.*file of the disk|map=.*not a report' c.qcow2 map=base.raw serve=false

# A snapshot is stored where the disk is that is reverted to it; with the one that follows.
rm -f a.qcow2 b.qcow2
make_image b.qcow2 4M
io b.qcow2 'write -P 9 512k 1M'
refused 'there is no snapshot "s"' b.qcow2 map=ours snapshot=s serve=false
refused 'snapshot= requires map=, raw-copy= or compare=, with serve=false' \
  b.qcow2 snapshot=s serve=false
make_image a.qcow2 4M backing_file=b.qcow2,backing_fmt=qcow2
io a.qcow2 'write -P 1 1M 128k' 'write -z 2M 64k'
qemu-img snapshot -c s a.qcow2
qemu-img resize -q a.qcow2 6M
io a.qcow2 'write -P 2 1M 64k' 'write -P 3 5M 64k' 'write -P 4 0 64k'
rm -f ours both
"$NBDKIT" -U - -r "$PLUGIN" a.qcow2 map=ours snapshot=s serve=false --run true
"$NBDKIT" -U - -r "$PLUGIN" a.qcow2 map=both snapshot=s --run 'nbdinfo --size "$uri"' |
  grep 4194304
cmp ours both
qemu-img snapshot -a s a.qcow2
compare a.qcow2
cmp ours both
refused 'untrusted=true' c.qcow2 map=ours untrusted=true
