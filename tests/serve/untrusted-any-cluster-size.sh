#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# untrusted=true serves images with clusters of any size, with a check before serving, and
# both policies of nbdkit-qcow2-validate accept them.  With the largest clusters even an
# empty image has a refcount table of 2 MiB; with the smallest ones a disk that is not
# small has a long L1 table, of 25 MiB here.  That takes little memory.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"

# judge IMAGE
judge ()
{
  local policy

  # shellcheck disable=SC2016
  "$python" - "$NBDKIT" -r -U - --run 'nbdinfo --map --totals "$uri"' "$PLUGIN" "$1" \
    untrusted=true check=full <<'PY'
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
if peak > 64 << 10:
    sys.exit("takes %d KiB" % peak)
PY
  for policy in upload strict; do
    "$abs_top_builddir/img/nbdkit-qcow2-img" validate --policy $policy "$1"
  done
}

sample 2 512 4K 64K 512K 2M
for size in "${sample[@]}"; do
  make_image "$img" 1G cluster_size=$size
  judge "$img"
  make_image "$img" 64M cluster_size=$size,preallocation=metadata
  judge "$img"
  rm "$img"
done

make_image "$img" 100G cluster_size=512
judge "$img"

# The longest refcount table, nearly all of it unused.
make_image "$img" 1G cluster_size=512
header_patch "$img" 56 I $(((8 << 20) / 512)) 48 Q $((1 << 30))
truncate -s $(((1 << 30) + (8 << 20))) "$img"
start_nbdkit -r -- "$img" untrusted=true
stop_nbdkit
