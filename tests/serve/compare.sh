#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# compare= tells where two disks first differ, as qemu-img compare does: of chains, of
# compressed and encrypted images, of snapshots, raw files, and images behind NBD.  Both
# stay as they were, and the report appears when it is complete.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version
. "$srcdir/lib/random.sh"
cd "$tmp"

# member KEY: its value in the report.
member ()
{
  sed -n 's/^  "'"$1"'": "\{0,1\}\([^",]*\)"\{0,1\},\{0,1\}$/\1/p' report.json
}

# compared DIFFERENCE IMAGE OTHER PARAMETER...: DIFFERENCE is an offset or null.
compared ()
{
  local expected="$1" image="$2" other="$3" found
  shift 3
  rm -f report.json
  "$NBDKIT" -r -U - "$PLUGIN" "$image" compare=report.json compare-with="$other" \
    serve=false "$@" --run true
  found="$(member difference) $(member compared-with)"
  case "$other" in *://*) ;; *) other="$PWD/$other" ;; esac
  [ "$found" = "$expected $other" ] || fail "$found: $image $other $*"
}

# refused PATTERN PARAMETER...
refused ()
{
  local pattern="$1"
  shift
  if "$NBDKIT" -U - "$PLUGIN" "$@" --run true 2> err; then fail "accepted: $*"; fi
  cat err
  grep -Eq -- "$pattern" err
  [ ! -e report.json ]
}

# Data, zeros and holes, in two layers.
writes=()
for ((i = 1; i <= 12; ++i)); do
  writes+=(-c "write -P $((i % 3)) $((RANDOM % 9000))k $((1 + RANDOM % 700))k"
           -c "write -z $((RANDOM % 9000))k $((1 + RANDOM % 300))k")
done
qemu-img create -q -f qcow2 base.qcow2 10M
qemu-io -f qcow2 "${writes[@]:0:24}" -c 'write -P 3 2M 64k' base.qcow2
qemu-img snapshot -c then base.qcow2
qemu-io -f qcow2 -c "write -P 9 2M 3M" base.qcow2
qemu-img create -q -f qcow2 -o cluster_size=4k -b base.qcow2 -F qcow2 disk.qcow2 12345856
qemu-io -f qcow2 "${writes[@]:24}" disk.qcow2
qemu-img convert -O raw disk.qcow2 disk.raw
qemu-img convert -O raw -l then base.qcow2 then.raw
qemu-img convert -c -O qcow2 disk.qcow2 small.qcow2

before=$(fingerprint disk.qcow2; fingerprint disk.raw)
compared null disk.qcow2 small.qcow2
compared null small.qcow2 disk.qcow2
compared null disk.qcow2 disk.qcow2
compared null disk.qcow2 disk.raw compare-format=raw
compared null base.qcow2 then.raw compare-format=raw snapshot=then
compared 2097152 base.qcow2 then.raw compare-format=raw
[ "$before" = "$(fingerprint disk.qcow2; fingerprint disk.raw)" ]

# One byte, anywhere; and the disk behind the end of the other one.
for ((i = 0; i < 5; ++i)); do
  at=$(((RANDOM * 32768 + RANDOM) % 12345856))
  cp disk.raw other.raw
  old=$(od -An -tu1 -j $at -N 1 disk.raw)
  printf "\\x$(printf %x $((255 - old)))" |
    dd of=other.raw bs=1 seek=$at conv=notrunc status=none
  compared $((at / 512 * 512)) disk.qcow2 other.raw compare-format=raw
done
cp disk.raw other.raw
truncate -s 20000001 other.raw
compared null small.qcow2 other.raw compare-format=raw
[ "$(member virtual-size) $(member other-virtual-size)" = "12345856 20000001" ]
printf x >> other.raw
compared 19999744 small.qcow2 other.raw compare-format=raw

# What both know to be zeros is not read.
truncate -s 8T huge.raw
"$NBDKIT" -U - "$PLUGIN" huge.qcow2 create=8T cluster-size=2M serve=false --run true
compared null huge.qcow2 huge.raw compare-format=raw

# Encrypted, and behind NBD.
"$NBDKIT" -U - "$PLUGIN" luks.qcow2 create=10M encrypt=luks passphrase=x iter-time=1 \
  backing-file=then.raw backing-format=raw flatten=true --run true
compared null luks.qcow2 then.raw compare-format=raw passphrase=x
qemu-nbd -t --fork -r --pid-file=far.pid -f raw -k "$sockdir/far.sock" small.qcow2
helper_pids+=("$(cat far.pid)")
compared null disk.qcow2 "nbd+unix:///?socket=$sockdir/far.sock"

# The disk is served afterwards, unless nobody wants that.
"$NBDKIT" -r -U - "$PLUGIN" disk.qcow2 compare=report.json compare-with=small.qcow2 \
  --run 'nbdcopy "$uri" served.raw && cmp served.raw disk.raw'

# Errors leave no report.
rm report.json
refused 'none.qcow2.*No such file' disk.qcow2 compare=report.json compare-with=none.qcow2
refused 'not a qcow2|magic' disk.qcow2 compare=report.json compare-with=disk.raw
refused 'compare= requires compare-with=FILE' disk.qcow2 compare=report.json
refused 'compare-with= requires compare=FILE' disk.qcow2 compare-with=small.qcow2
refused 'cannot be used with' untrusted=true disk.qcow2 compare=report.json \
  compare-with=small.qcow2
refused 'name the same file' disk.qcow2 compare=a map=a compare-with=small.qcow2
qemu-img create -q -f qcow2 damaged.qcow2 8M
qemu-io -f qcow2 -c 'write -P 1 0 64k' damaged.qcow2
header_patch damaged.qcow2 $((0x40000)) Q $((0x8000000000000000 | 0x50200))
refused 'comparing failed after' disk.qcow2 compare=report.json compare-with=damaged.qcow2
refused 'L2 entry' damaged.qcow2 compare=report.json compare-with=disk.qcow2
