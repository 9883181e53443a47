#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img info and snapshot -l say of an image what qemu-img says of it, in words
# and in JSON.  (In newer versions qemu-img says more: these lines and keys are left out
# where this one does not have them.)
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"

# The same files, because of their size on disk.
rmdir ours
ln -s theirs ours

# Theirs and ours, without what only newer versions say.
same_json ()
{
  "$python" - theirs.out ours.out <<'PY'
import json, sys
theirs, ours = (json.load(open(name)) for name in sys.argv[1:])

def told(value, theirs):
    """VALUE, without keys that qemu-img did not have before QEMU 8."""
    if isinstance(value, dict):
        return {k: told(v, theirs.get(k) if isinstance(theirs, dict) else None)
                for k, v in value.items()
                if k not in ("children", "detached-header", "full-backing-filename")
                or isinstance(theirs, dict) and k in theirs}
    if isinstance(value, list):
        return [told(v, t) for v, t in zip(value, theirs or [None] * len(value))]
    return value

assert told(ours, theirs) == told(theirs, theirs), (theirs, ours)
PY
}

# The lines, in any order.
lines ()
{
  sed -e '/^Child node/,/^$/d' -e '/detached header/d' -e 's/VM SIZE/VM_SIZE/' \
    -e 's/VM CLOCK/VM_CLOCK/' -e 's/ 00\(00:[0-9:.]*\) / \1 /' -e 's/  */ /g' \
    -e 's/ --$/ /' -e '/^$/d' "$1" | sort
}

informed ()
{
  both_status info --output=json "$@"
  [ "$status" = 0 ]
  same_json
  both_status info "$@"
  diff <(lines theirs.out) <(lines ours.out)
}

in_theirs () { (cd theirs && "$@") }
in_theirs qemu-img create -q -f qcow2 disk.qcow2 10M
informed disk.qcow2
in_theirs qemu-io -f qcow2 -c 'write -P 1 0 2M' -c 'write -P 2 5M 100k' disk.qcow2
qemu-img snapshot -c one theirs/disk.qcow2
qemu-img snapshot -c "another one" theirs/disk.qcow2
qemu-img bitmap --add theirs/disk.qcow2 day
qemu-img bitmap --add --disable -g 4k theirs/disk.qcow2 "the night"
informed disk.qcow2
informed -f qcow2 -U disk.qcow2
both_status snapshot -l disk.qcow2
diff <(lines theirs.out) <(lines ours.out)
both_status snapshot disk.qcow2
grep 'another one' ours.out
in_theirs qemu-img create -q -f qcow2 -b disk.qcow2 -F qcow2 over.qcow2 20M
in_theirs mkdir sub
in_theirs qemu-img create -q -f qcow2 -b ../over.qcow2 -F qcow2 sub/over.qcow2 20M
in_theirs truncate -s 1000000 disk.raw
in_theirs qemu-img create -q -f qcow2 -b disk.raw -F raw on-raw.qcow2
informed disk.raw
informed --backing-chain disk.raw
for image in disk.qcow2 over.qcow2 sub/over.qcow2 on-raw.qcow2; do
  informed "$image"
  informed --backing-chain "$image"
done
for options in compat=0.10 cluster_size=512,refcount_bits=1 lazy_refcounts=on \
    cluster_size=2M,refcount_bits=64 preallocation=metadata \
    extended_l2=on compression_type=zstd data_file=data.raw \
    data_file=raw.raw,data_file_raw=on; do
  in_theirs qemu-img create -q -f qcow2 -o "$options" options.qcow2 5M
  informed options.qcow2
done
# A data file need not exist.
in_theirs make_image data.qcow2 5M data_file=data.raw
rm theirs/data.raw
img info --output=json ours/data.qcow2 | grep '"data-file": "data.raw"'
in_theirs make_image a.qcow2 0
informed a.qcow2
in_theirs make_image a.qcow2 $((512 * 4321)) cluster_size=4k

# Marked corrupt, not closed properly, or both.
in_theirs cp a.qcow2 b.qcow2
for flags in 1 2 3; do
  header_patch ours/b.qcow2 76 I $flags
  informed b.qcow2
done

# Snapshots, with the state of a machine and without; old tables with less extra data.
qemu-img snapshot -c 'first one' ours/a.qcow2
qemu-img snapshot -c $'\xc3\xa9' ours/a.qcow2
informed a.qcow2
for n in 0 8 16; do
  in_theirs cp a.qcow2 b.qcow2
  at=$(od -An -tu8 --endian=big -j64 -N8 ours/a.qcow2 | tr -d ' ')
  # The table ends with the first entry.
  header_patch ours/b.qcow2 60 I 1 $((at + 24)) Q 3123456789 $((at + 32)) I 4096 \
    $((at + 36)) I $n $((at + 12)) H 0 $((at + 14)) H 4
  informed b.qcow2
done

# Bitmaps: recording, not recording, in use.
qemu-img bitmap --add ours/a.qcow2 b1
qemu-img bitmap --add --disable -g 4M ours/a.qcow2 b2
informed a.qcow2
at=$("$python" - <<'PY'
import struct
f = open("ours/a.qcow2", "rb").read()
# The extension with the bitmaps: its length, two numbers, and the directory.
print(struct.unpack_from(">Q", f, f.index(bytes.fromhex("23852875")) + 24)[0])
PY
)
header_patch ours/a.qcow2 $((at + 12)) I 3
informed a.qcow2
# One that does not fit the disk.
make_image ours/b.qcow2 100M cluster_size=512
qemu-img bitmap --add -g 512 ours/b.qcow2 b
header_patch ours/b.qcow2 24 Q 512
both_status info b.qcow2
[ "$status" = 1 ]
grep 'does not fit the size' ours.err

# Encrypted, without the passphrase.
aes128=encrypt.cipher-alg=aes-128,encrypt.cipher-mode=cbc
aes128+=,encrypt.ivgen-alg=essiv,encrypt.ivgen-hash-alg=sha256
for format in aes luks,encrypt.iter-time=10 "luks,encrypt.iter-time=10,$aes128"; do
  qemu-img create -q -f qcow2 --object secret,id=s,data=hush \
    -o "encrypt.key-secret=s,encrypt.format=$format" ours/secret.qcow2 1M
  informed secret.qcow2
done
# The shortest LUKS header, and one that is too short.
at=$("$python" - <<'PY'
import struct
b = open("ours/secret.qcow2", "rb").read(65536)
at, = struct.unpack_from(">I", b, 100)
while struct.unpack_from(">I", b, at)[0] != 0x0537be77:
    at += 8 + (struct.unpack_from(">I", b, at + 4)[0] + 7 & ~7)
print(at + 8)
PY
)
header_patch ours/secret.qcow2 $((at + 8)) Q 592
informed secret.qcow2
header_patch ours/secret.qcow2 $((at + 8)) Q 591
img_refused 'LUKS header .*: it is too short' info secret.qcow2

# Names.
for name in ./sub/over.qcow2 sub/../sub/over.qcow2 "$tmp/theirs/sub/over.qcow2"; do
  informed "$name"
  informed --backing-chain "$name"
done
make_image ours/sub/a.qcow2 1M "backing_file=$tmp/theirs/over.qcow2,backing_fmt=qcow2"
informed --backing-chain sub/a.qcow2
# Of the image alone, whatever is below: missing, of unknown format.
for backing in none 'rbd:pool/image' 'nbd://localhost:1/x' 'json:{"driver":"raw"}'; do
  for format in raw qcow2 vmdk; do
    qemu-img rebase -u -f qcow2 -b "$backing" -F $format ours/sub/a.qcow2
    informed sub/a.qcow2
  done
done
for backing in none a.qcow2; do
  qemu-img rebase -u -f qcow2 -b $backing -F qcow2 ours/sub/a.qcow2
  both_status info --backing-chain sub/a.qcow2
  [ "$status" = 1 ]
done
grep 'contains a loop' ours.err
# Behind a server.
qemu-nbd -r -t -e 9 --fork -f raw -k "$sockdir/q.sock" --pid-file=q.pid -x disk \
  ours/a.qcow2
helper_pids+=("$(cat q.pid)")
informed "nbd+unix:///disk?socket=$sockdir/q.sock"
# While another program writes it.
start_nbdkit ours/options.qcow2
hold_connection
both_status info options.qcow2
[ "$status" = 1 ]
informed -U options.qcow2
drop_connections
stop_nbdkit

# Of a file that was cut off, what is still there.
for options in compat=1.1 compat=0.10 cluster_size=2M; do
  for size in 300000 65536 4000 112; do
    in_theirs qemu-img create -q -f qcow2 -o "$options" cut.qcow2 5M
    truncate -s "$size" theirs/cut.qcow2
    informed cut.qcow2
  done
done
# It is told that there were snapshots; qemu-img takes zeros for them.
in_theirs qemu-img create -q -f qcow2 -b disk.qcow2 -F qcow2 cut.qcow2 5M
in_theirs qemu-io -f qcow2 -c 'write 0 1M' cut.qcow2
in_theirs qemu-img snapshot -c one cut.qcow2
for size in 1000000 65536 4000 512; do
  truncate -s "$size" theirs/cut.qcow2
  both_status info cut.qcow2
  [ "$status" = 0 ]
  diff <(lines theirs.out | grep -v -e '^Snapshot list' -e '^ID' -e 1970-01-01) \
    <(lines ours.out)
  grep 'snapshots are not described' ours.err
  [ "$(wc -l < ours.err)" = 1 ]
done
for bad in none.qcow2 "" "-f qcow2 disk.raw" "--output=x disk.qcow2" "disk.qcow2 over.qcow2"; do
  # shellcheck disable=SC2086
  both_status info $bad
  [ "$status" = 1 ]
done
if (cd ours && img info -f qcow2 disk.raw); then fail "not an image"; fi
