#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img advise-cache: with the l2-cache that it recommends, no mapping is read
# twice; it works on all kinds of images, and does not change them.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

advise ()
{
  "$abs_top_builddir/img/nbdkit-qcow2-img" advise-cache "$@" | tee "$tmp/advice"
}

advised ()
{
  sed -n 's/^to read at full speed .*l2-cache=//p' "$tmp/advice"
}

# Clusters in no order: the worst there is.
img="$tmp/a.qcow2"
make_image "$img" 256M cluster_size=512
start_nbdkit file="$img"
nbdsh_run -c - <<'PY'
import random
r = random.Random(1)
for i in range(20000):
    h.pwrite(b"x" * 512, r.randrange(1 << 19) * 512)
PY
stop_nbdkit
before=$(fingerprint "$img")
advise "$img"
[ "$before" = "$(fingerprint "$img")" ]
grep -Ex 'disk +256M, clusters of 512 bytes' "$tmp/advice"
grep -E 'L2 tables of the disk +4M,' "$tmp/advice"
grep -E '^64K +204[0-9.]*G +102[0-9.]*G$' "$tmp/advice"
grep -E '^512 bytes .*\*$' "$tmp/advice"
evictions ()
{
  # shellcheck disable=SC2016
  "$NBDKIT" -r -U - "$PLUGIN" "$img" l2-cache="$1" stats="$tmp/stats" \
    --run 'nbdinfo --map --totals "$uri" && nbdinfo --map --totals "$uri"' > "$tmp/out"
  "$python" -c 'import json; print(json.load(open("'"$tmp/stats"'"))["map"]["evictions"])'
}
size=$(advised)
[ "$(evictions "$size")" = 0 ]
[ "$(evictions 100K)" -gt 0 ]

# A chain, a cache of another size, another backing file.
qemu-img create -q -f qcow2 -b a.qcow2 -F qcow2 "$tmp/b.qcow2"
advise --cache=16M "$tmp/b.qcow2"
grep -E '^64K +102[0-9.]*G +51[0-9.]*G +[*]$' "$tmp/advice"
cp "$img" "$tmp/c.qcow2"
advise --image-opts driver=qcow2,file.filename="$tmp/b.qcow2",backing.file.filename="$tmp/c.qcow2"
if advise "$tmp/b.qcow2" backing=deny; then fail "two operands"; fi
rm -f "$tmp/none.qcow2"
if advise "$tmp/none.qcow2"; then fail "advice about nothing"; fi
echo text > "$tmp/none.qcow2"
if advise "$tmp/none.qcow2"; then fail "advice about text"; fi
if advise; then fail "advice without an image"; fi
for size in 0 1x -1; do
  if advise --cache="$size" "$img"; then fail "a cache of $size"; fi
done
advise --help | grep usage
