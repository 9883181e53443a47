#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# flatten=true: afterwards the image shows the same data without any other file, as
# qemu-img sees it; no data was copied that the image already had, or that is zeros; the
# rest of the header does not change.  An image that cannot be flattened is refused in one
# line and not changed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

size=$((24 << 20))
random_file "$tmp/base.raw" $((5 << 20))
# Holes, and zeros that are no hole, to beyond the middle.
truncate -s 9M "$tmp/base.raw"
head -c 1M /dev/zero >> "$tmp/base.raw"
truncate -s 13M "$tmp/base.raw"

# flatten IMAGE [PARAMETER...]: and what was copied, in bytes, into $copied.
flatten ()
{
  "$NBDKIT" -v -U - "$PLUGIN" "$@" flatten=true --run true 2> "$tmp/log" ||
    { cat "$tmp/log"; fail "flatten of $1"; }
  copied="$(sed -n 's/.*: flattened, \([0-9]*\) bytes were copied$/\1/p' "$tmp/log")"
  [ -n "$copied" ]
}

# is_independent IMAGE: of backing files, for QEMU, and without a trace.
is_independent ()
{
  qemu-img info -f qcow2 --output=json "$1" | grep -q backing && fail "$1: backing"
  "$python" - "$1" <<'PY'
import struct, sys
with open(sys.argv[1], "rb") as f:
    h = f.read(65536)
version, name, length, bits = struct.unpack_from(">IQII", h, 4)
assert name == 0 and length == 0
at, seen = (struct.unpack_from(">I", h, 100)[0] if version == 3 else 72), []
assert at in (72, 104, 112), at
while True:
    kind, n = struct.unpack_from(">II", h, at)
    if kind == 0:
        break
    seen.append(kind)
    at += 8 + (n + 7 & ~7)
assert 0xe2792aca not in seen, seen
# QEMU leaves the table of features out where clusters are small.
assert version == 2 or bits < 16 or 0x6803f857 in seen, seen
assert not any(h[at:1 << bits]), "not zeros behind the header"
PY
}

for row in v3:64k: v3:512: v2:4k: v3:2M: v3:64k:,extended_l2=on; do
  IFS=: read -r compat cluster more <<< "$row"
  rm -f "$tmp"/*.qcow2
  # Layers with clusters of other sizes, compressed ones, zeros, shorter and longer.
  make_image "$tmp/low.qcow2" 16M "cluster_size=32k,backing_file=base.raw,backing_fmt=raw"
  qemu-io -f qcow2 -c 'write -P 1 1M 300k' -c 'write -z 2M 1M' -c 'write -P 0 3M 128k' \
    -c 'write -c -P 2 12M 64k' "$tmp/low.qcow2"
  make_image "$tmp/mid.qcow2" 20M \
    "cluster_size=4k,compat=v2,backing_file=low.qcow2,backing_fmt=qcow2"
  qemu-io -f qcow2 -c 'write -P 3 15M 3M' -c 'write -P 4 4M 5000' "$tmp/mid.qcow2"
  make_image "$tmp/top.qcow2" $size \
    "compat=$compat,cluster_size=$cluster,backing_file=mid.qcow2,backing_fmt=qcow2$more"
  qemu-io -f qcow2 -c 'write -P 5 4M 1M' -c 'write -P 6 23M 1M' -c 'write -P 7 100k 5k' \
    "$tmp/top.qcow2"
  if [ "$compat" = v3 ]; then
    qemu-io -f qcow2 -c 'write -z 16M 1M' "$tmp/top.qcow2"
    qemu-img bitmap --add "$tmp/top.qcow2" monday
  fi
  qemu-img convert -f qcow2 -O raw "$tmp/top.qcow2" "$tmp/model.raw"
  (cd "$tmp" && sha256sum base.raw low.qcow2 mid.qcow2) > "$tmp/sums"

  flatten "$tmp/top.qcow2"
  # Most of the base's 5M, up to 3M of the middle, and some clusters.
  [ "$copied" -gt $((4 << 20)) ]
  [ "$copied" -lt $(((8 << 20) + 4 * $(numfmt --from=iec "${cluster^^}"))) ]
  is_independent "$tmp/top.qcow2"
  (cd "$tmp" && sha256sum -c sums)
  mkdir "$tmp/away"
  mv "$tmp/base.raw" "$tmp/low.qcow2" "$tmp/mid.qcow2" "$tmp/away"
  check_clean "$tmp/top.qcow2"
  same_as_raw "$tmp/top.qcow2" "$tmp/model.raw"
  if [ "$compat" = v3 ]; then
    qemu-img info -f qcow2 "$tmp/top.qcow2" | grep -A 3 'bitmaps:' | grep -q auto
    nothing_marked "$tmp/top.qcow2" monday
  fi

  # Again: there is nothing to do.  It can be served at once, and written.
  fingerprint "$tmp/top.qcow2" > "$tmp/before"
  flatten "$tmp/top.qcow2"
  [ "$copied" = 0 ]
  fingerprint "$tmp/top.qcow2" | cmp - "$tmp/before"
  start_nbdkit file="$tmp/top.qcow2" flatten=true
  model random "$uri" "$tmp/model.raw" --ops 100 --cluster \
    "$(numfmt --from=iec "${cluster^^}")"
  stop_nbdkit
  check_clean "$tmp/top.qcow2"
  same_as_raw "$tmp/top.qcow2" "$tmp/model.raw"
  mv "$tmp"/away/* "$tmp"
  rmdir "$tmp/away"
done

# With another backing file than the one it names; then that one goes, too.
make_image "$tmp/a.qcow2" 8M "backing_file=base.raw,backing_fmt=raw"
qemu-io -f qcow2 -c 'write -P 9 1M 64k' "$tmp/a.qcow2"
random_file "$tmp/other.raw" $((2 << 20))
cp "$tmp/other.raw" "$tmp/model.raw"
truncate -s 8M "$tmp/model.raw"
qemu-io -f raw -c 'write -P 9 1M 64k' "$tmp/model.raw"
flatten "$tmp/a.qcow2" backing="$tmp/other.raw" backing-format=raw
is_independent "$tmp/a.qcow2"
check_clean "$tmp/a.qcow2"
same_as_raw "$tmp/a.qcow2" "$tmp/model.raw"

# An encrypted one.
qemu-img create -q -f qcow2 --object secret,id=s,data=abc \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 \
  -b base.raw -F raw "$tmp/e.qcow2" 13M
flatten "$tmp/e.qcow2" passphrase=abc
is_independent "$tmp/e.qcow2"
opts="driver=qcow2,encrypt.key-secret=s,file.filename=$tmp/e.qcow2"
qemu-img check --object secret,id=s,data=abc --image-opts "$opts"
qemu-img convert --object secret,id=s,data=abc -O raw --image-opts "$opts" "$tmp/e.raw"
cmp "$tmp/e.raw" "$tmp/base.raw"

# A new image: holes of a raw disk are not read, and zeros take no clusters.
truncate -s 1T "$tmp/large.raw"
dd if="$tmp/base.raw" of="$tmp/large.raw" bs=1M seek=700000 conv=notrunc status=none
for compress in off on; do
  rm -f "$tmp/new.qcow2"
  "${soon[@]}" "$NBDKIT" -U - "$PLUGIN" "$tmp/new.qcow2" create=auto flatten=true \
    backing-file=large.raw backing-format=raw cluster-size=2M cache=unsafe \
    compress=$compress --run true
  is_independent "$tmp/new.qcow2"
  check_clean "$tmp/new.qcow2"
  qemu-img compare -q -f raw -F qcow2 "$tmp/large.raw" "$tmp/new.qcow2"
  [ "$(allocated_kib "$tmp/new.qcow2")" -le 16384 ]
done
rm "$tmp/large.raw"

# Internal snapshots: those that need nothing of what is below do no harm.
make_image "$tmp/s.qcow2" 13M "backing_file=base.raw,backing_fmt=raw"
cp "$tmp/s.qcow2" "$tmp/full.qcow2"
qemu-img snapshot -c monday "$tmp/s.qcow2"
fingerprint "$tmp/s.qcow2" > "$tmp/before"
refused "cannot be flattened: an internal snapshot needs the backing file: monday" \
  "$tmp/s.qcow2" flatten=true
fingerprint "$tmp/s.qcow2" | cmp - "$tmp/before"
qemu-io -f qcow2 -c 'write -P 1 0 13M' "$tmp/full.qcow2"
qemu-img snapshot -c monday "$tmp/full.qcow2"
qemu-img convert -f qcow2 -l monday -O raw "$tmp/full.qcow2" "$tmp/monday.raw"
flatten "$tmp/full.qcow2"
is_independent "$tmp/full.qcow2"
check_clean "$tmp/full.qcow2"
qemu-img convert -f qcow2 -l monday -O raw "$tmp/full.qcow2" "$tmp/after.raw"
cmp "$tmp/after.raw" "$tmp/monday.raw"

# Refused.
make_image "$tmp/a.qcow2" 8M "backing_file=base.raw,backing_fmt=raw"
fingerprint "$tmp/a.qcow2" > "$tmp/before"
for other in untrusted=true snapshot=monday; do
  refused "${other%monday} cannot be used with flatten=true" \
    "$tmp/a.qcow2" flatten=true $other
done
for other in backing=deny snapshot-create=monday; do
  refused "flatten=true cannot be used with ${other%monday}" \
    "$tmp/a.qcow2" flatten=true $other
done
fingerprint "$tmp/a.qcow2" | cmp - "$tmp/before"
header_patch "$tmp/a.qcow2" 72 Q '|2'
refused "cannot be flattened: the image is marked corrupt: check=repair may help" "$tmp/a.qcow2" flatten=true
