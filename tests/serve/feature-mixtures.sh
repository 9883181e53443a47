#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Random requests on images in which the features of the format are mixed at random:
# version, cluster size, refcount width, extended L2 entries, external data files,
# encryption, compression, lazy refcounts, preallocation, chains of such images, internal
# snapshots, bitmaps; served with random parameters.  QEMU judges each (see mixture.py).
#
# Environment: SEED repeats one; SECONDS_TO_RUN (default 4, or 12).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

features="luks aes"
dump="$("$NBDKIT" "$PLUGIN" --dump-plugin)"
for f in extended_l2 data_file zstd compress; do
  if grep -q "^qcow2_$f=yes$" <<< "$dump"; then features+=" $f"; fi
done
export FEATURES="$features"
seed="${SEED:-}"
mixtures=0

one_mixture ()
{
  local dir="$tmp/mixture" cluster
  local -a parameters

  rm -rf "$dir"
  mkdir "$dir"
  # One seed for all of it.
  export SEED="${seed:-$RANDOM$RANDOM}"
  "$python" "$srcdir/lib/mixture.py" make "$dir" "$dir/spec"
  show () { "$python" "$srcdir/lib/mixture.py" show "$dir/spec" "$1"; }
  echo "MIXTURE $(show line)"
  mapfile -t parameters < <(show parameters)
  cluster="$(show cluster)"
  start_nbdkit file="$dir/top.qcow2" "${parameters[@]}"
  model random "$uri" "$dir/model.raw" --seconds 0.6 --cluster "$cluster" \
    --trim "$(show trim)"
  stop_nbdkit
  "$python" "$srcdir/lib/mixture.py" judge "$dir" "$dir/spec"
  mixtures=$((mixtures + 1))
}

seconds=4
if long_suite; then seconds=12; fi
end=$((SECONDS + ${SECONDS_TO_RUN:-$seconds}))
while :; do
  one_mixture
  if [ -n "$seed" ] || [ "$SECONDS" -ge "$end" ]; then break; fi
done
echo "$mixtures mixtures"
