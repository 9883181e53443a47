#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# info= writes what qemu-img info --output=json prints, of one image and of a chain: for
# all features of images, relative and absolute names, NBD exports.  With serve=false it
# needs neither the passphrase nor other files.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version
requires qemu-nbd --version
cd "$tmp"

cat > same.py <<'PY'
"""same.py OURS QEMU: are they the same, except for what older versions of QEMU lack?"""
import difflib, json, sys


def without(x, lacking):
    if isinstance(x, dict):
        return {k: without(v, lacking) for k, v in x.items() if k not in lacking}
    return [without(v, lacking) for v in x] if isinstance(x, list) else x


def keys(x):
    if isinstance(x, dict):
        return set(x).union(*map(keys, x.values()))
    return set().union(*map(keys, x)) if isinstance(x, list) else set()


ours, qemu = (json.load(open(name, errors="surrogateescape")) for name in sys.argv[1:3])
old = {"children", "detached-header"} - keys(qemu)
if without(ours, old) != qemu:
    sys.exit("\n".join(difflib.unified_diff(*(
        json.dumps(x, indent=2, sort_keys=True).split("\n") for x in (ours, qemu)))))
PY

# info FILE [PARAMETER...]: writes `ours'.
info ()
{
  rm -f ours
  "$NBDKIT" -U - "$PLUGIN" "$1" info=ours serve=false "${@:2}" --run true
}

# compare FILE: with and without the chain.
compare ()
{
  info "$1"
  qemu-img info --output=json "$1" > qemu
  "$python" same.py ours qemu
  info "$1" info-chain=true
  qemu-img info --output=json --backing-chain "$1" > qemu
  "$python" same.py ours qemu
}

# --- features ---

for options in compat=v2 compat=v3 cluster_size=512,refcount_bits=1 \
               cluster_size=2M,refcount_bits=64 lazy_refcounts=on extended_l2=on \
               preallocation=metadata compression_type=zstd; do
  rm -f a.qcow2
  make_image a.qcow2 10M "$options"
  compare a.qcow2
done
make_image a.qcow2 0
compare a.qcow2
make_image a.qcow2 $((512 * 4321)) cluster_size=4k
qemu-io -f qcow2 -c 'write 0 300k' -c 'write -z 1M 64k' a.qcow2
compare a.qcow2

# Marked corrupt, not closed properly, or both.
cp a.qcow2 b.qcow2
for flags in 1 2 3; do
  header_patch b.qcow2 76 I $flags
  compare b.qcow2
done

# Snapshots, with the state of a machine and without; old tables with less extra data.
qemu-img snapshot -c 'first one' a.qcow2
qemu-io -f qcow2 -c 'write -P 3 0 1M' a.qcow2
qemu-img snapshot -c $'\xc3\xa9' a.qcow2
compare a.qcow2
for n in 0 8 16; do
  cp a.qcow2 b.qcow2
  at=$(od -An -tu8 --endian=big -j64 -N8 a.qcow2 | tr -d ' ')
  # The table ends with the first entry.
  header_patch b.qcow2 60 I 1 $((at + 24)) Q 3123456789 $((at + 32)) I 4096 \
    $((at + 36)) I $n $((at + 12)) H 0 $((at + 14)) H 4
  compare b.qcow2
done

# Bitmaps: recording, not recording, in use.
qemu-img bitmap --add a.qcow2 b1
qemu-img bitmap --add --disable -g 4M a.qcow2 b2
compare a.qcow2
at=$("$python" - <<'PY'
import struct
f = open("a.qcow2", "rb").read()
# The extension with the bitmaps: its length, two numbers, and the directory.
print(struct.unpack_from(">Q", f, f.index(bytes.fromhex("23852875")) + 24)[0])
PY
)
header_patch a.qcow2 $((at + 12)) I 3
compare a.qcow2
# One that does not fit the disk.
make_image c.qcow2 100M cluster_size=512
qemu-img bitmap --add -g 512 c.qcow2 b
header_patch c.qcow2 24 Q 512
if qemu-img info c.qcow2; then fail "QEMU accepts it"; fi
refused 'does not fit the size' c.qcow2 info=ours serve=false

# Encryption.
for format in luks aes; do
  qemu-img create -q -f qcow2 --object secret,id=s,data=x \
    -o encrypt.format=$format,encrypt.key-secret=s \
    $([ $format = aes ] || echo -o encrypt.iter-time=10) e.qcow2 5M
  compare e.qcow2
done
qemu-img create -q -f qcow2 --object secret,id=s,data=x -o encrypt.format=luks \
  -o encrypt.key-secret=s,encrypt.iter-time=10,encrypt.cipher-alg=aes-128 \
  -o encrypt.cipher-mode=cbc,encrypt.ivgen-alg=essiv,encrypt.ivgen-hash-alg=sha256 \
  e.qcow2 5M
compare e.qcow2

# The shortest LUKS header, and one that is too short.
extension=$("$python" - <<'PY'
import struct
b = open("e.qcow2", "rb").read(65536)
at, = struct.unpack_from(">I", b, 100)
while struct.unpack_from(">I", b, at)[0] != 0x0537be77:
    at += 8 + (struct.unpack_from(">I", b, at + 4)[0] + 7 & ~7)
print(at + 8)
PY
)
header_patch e.qcow2 $((extension + 8)) Q 592
compare e.qcow2
header_patch e.qcow2 $((extension + 8)) Q 591
refused 'LUKS header .*: it is too short' e.qcow2 info=ours serve=false

# A data file, which need not exist.
for raw in on off; do
  rm -f d.qcow2 d.raw
  make_image d.qcow2 5M data_file=d.raw,data_file_raw=$raw
  compare d.qcow2
done
rm d.raw
info d.qcow2
"$python" -c 'import json
d = json.load(open("ours"))["format-specific"]["data"]
assert d["data-file"] == "d.raw" and d["data-file-raw"] is False'

# --- chains and names ---

mkdir -p sub/below
truncate -s 1000 sub/below/raw
make_image sub/below/b.qcow2 1M backing_file=raw,backing_fmt=raw
qemu-img snapshot -c s sub/below/b.qcow2
make_image sub/t.qcow2 2M backing_file=below/b.qcow2,backing_fmt=qcow2
for name in sub/t.qcow2 ./sub/t.qcow2 sub/../sub/t.qcow2 "$tmp/sub/t.qcow2"; do
  compare "$name"
done
qemu-img rebase -u -f qcow2 -b "$tmp/sub/below/b.qcow2" -F qcow2 sub/t.qcow2
compare sub/t.qcow2
cd sub
cp ../same.py .
compare t.qcow2
cd ..

# Of the image alone, whatever is below: missing, of unknown format, not allowed.
for backing in none 'rbd:pool/image' 'nbd://localhost:1/x' 'json:{"driver":"raw"}'; do
  for format in raw qcow2 vmdk; do
    qemu-img rebase -u -f qcow2 -b "$backing" -F $format sub/t.qcow2
    info sub/t.qcow2
    qemu-img info --output=json sub/t.qcow2 > qemu
    "$python" same.py ours qemu
  done
done
qemu-img rebase -u -f qcow2 -b none -F qcow2 sub/t.qcow2
refused 'cannot open|No such file' sub/t.qcow2 info=ours info-chain=true serve=false
info sub/t.qcow2 untrusted=true
refused 'must not be opened' sub/t.qcow2 info=ours info-chain=true serve=false untrusted=true

# A loop, and a file that is none.
qemu-img rebase -u -f qcow2 -b t.qcow2 -F qcow2 sub/t.qcow2
refused 'contains a loop' sub/t.qcow2 info=ours info-chain=true serve=false
refused 'not a qcow2 image' sub/below/raw info=ours serve=false

# Behind a server.
qemu-nbd -r -t -e 9 -f raw -k "$sockdir/q.sock" --pid-file=q.pid -x disk \
  a.qcow2 &
helper_pids+=($!)
await -p $! test -s q.pid
compare "nbd+unix:///disk?socket=$sockdir/q.sock"

# Locks: as qemu-img info without and with -U.
make_image w.qcow2 1M
start_nbdkit w.qcow2
hold_connection
refused 'lock' w.qcow2 info=ours serve=false
info w.qcow2 lock=false
drop_connections
stop_nbdkit
