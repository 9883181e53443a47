#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# bitmap-add, bitmap-clear and bitmap-remove: QEMU finds either all requested changes or
# none, and can use the bitmaps; after a crash the bitmaps are the old or the new ones.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version

img="$tmp/a.qcow2"

bitmaps_are ()
{
  check_clean "$img"
  bitmaps_of "$img" | diff <(printf '%s\n' "$@" | grep -v '^$') -
}

edit ()
{
  "$NBDKIT" -r -U - "$PLUGIN" "$img" "$@" --run true
}

sample 2 512 4k 64k 2M
for cluster in "${sample[@]}"; do
  rm -f "$img"
  case $cluster in
    512) default=4096 ;;
    4k) default=4096 ;;
    64k) default=65536 ;;
    2M) default=65536 ;;
  esac
  # The name of the backing file is in the way of the extension.
  random_file "$tmp/base.raw" 4194304
  qemu-img create -q -f qcow2 -b base.raw -F raw -o "cluster_size=$cluster" "$img" 40M
  qemu-io -f qcow2 -c 'write -P 1 64k 64k' "$img" > /dev/null
  qemu-img convert -f qcow2 -O raw "$img" "$tmp/want.raw"

  edit bitmap-add=one
  bitmaps_are "one:$default:auto"
  edit bitmap-granularity=512 bitmap-add=two bitmap-add=three
  bitmaps_are "one:$default:auto" two:512:auto three:512:auto
  same_as_raw "$img" "$tmp/want.raw"

  # They record, for us and for QEMU.
  start_nbdkit file="$img"
  nbdsh_run -c 'h.pwrite(b"x" * 512, 8 << 20)'
  stop_nbdkit
  qemu-io -f qcow2 -c 'write 20M 512' "$img" > /dev/null
  printf '%d 512\n' $((8 << 20)) $((20 << 20)) > "$tmp/want.marked"
  marked "$img" two | diff "$tmp/want.marked" -
  marked "$img" three | diff "$tmp/want.marked" -

  # Emptied, removed and made anew at once; what is not named stays.
  edit bitmap-clear=two bitmap-remove=one bitmap-add=one bitmap-granularity=64k
  bitmaps_are two:512:auto three:512:auto one:65536:auto
  nothing_marked "$img" two
  marked "$img" three | diff "$tmp/want.marked" -
  qemu-io -f qcow2 -c 'write 20M 512' "$img" > /dev/null
  [ "$(marked "$img" two)" = "$((20 << 20)) 512" ]
  # Disabled ones can be emptied, and stay disabled.
  qemu-img bitmap --disable "$img" three
  edit bitmap-clear=three
  bitmaps_are two:512:auto three:512: one:65536:auto
  nothing_marked "$img" three
  qemu-img bitmap --add "$img" four
  qemu-img bitmap --merge two "$img" four
  check_clean "$img"

  # All are removed; and one comes back.
  edit bitmap-remove=one bitmap-remove=two bitmap-remove=three bitmap-remove=four
  bitmaps_are ""
  qemu-img info "$img" > "$tmp/info" 2>&1
  if grep -Ei 'bitmaps:|warning' "$tmp/info"; then fail "QEMU still talks of bitmaps"; fi
  edit bitmap-add=again
  bitmaps_are "again:$default:auto"
  edit bitmap-remove=again
  qemu-img bitmap --add "$img" by-qemu
  bitmaps_of "$img" | grep ^by-qemu:
  check_clean "$img"
  qemu-img bitmap --remove "$img" by-qemu

  # Many, with long names: more than a cluster of them.
  many=()
  for i in {1..40}; do many+=("bitmap-add=$(printf '%0200d' "$i")"); done
  edit "${many[@]}"
  check_clean "$img"
  [ "$(bitmaps_of "$img" | wc -l)" = 40 ]
done

# One that a crash left behind can only be removed.
rm -f "$img"
make_image "$img" 8M
edit bitmap-add=void bitmap-add=good
qemu-io -f qcow2 -c 'write 0 64k' "$img" > /dev/null
read -r entry _ <<< "$("$python" "$srcdir/lib/bitmaps.py" where "$img" void)"
header_patch "$img" $((entry + 12)) I '|1'
refused_untouched '"void": it is inconsistent' "$img" bitmap-clear=void
refused_untouched '"void": it is inconsistent' "$img" bitmap-remove=good bitmap-clear=void
edit bitmap-remove=void
bitmaps_are good:65536:auto
[ "$(marked "$img" good)" = "0 65536" ]

# What is refused.
refused_untouched '"good": a bitmap with this name exists' "$img" bitmap-add=good
refused_untouched '"x": a bitmap with this name exists' "$img" bitmap-add=x bitmap-add=x
refused_untouched '"x": there is no such' "$img" bitmap-clear=x
refused_untouched '"x": there is no such' "$img" bitmap-add=y bitmap-remove=x
refused_untouched 'a name must have 1 to' "$img" bitmap-add=
refused_untouched 'a name must have 1 to' "$img" bitmap-add="$(printf '%01024d' 1)"
refused_untouched 'power of two' "$img" bitmap-granularity=1000
refused_untouched 'power of two' "$img" bitmap-granularity=256
refused_untouched 'power of two' "$img" bitmap-granularity=4G
refused_untouched 'untrusted' "$img" bitmap-add=x untrusted=true
edit bitmap-add="$(printf '%01023d' 1)"
check_clean "$img"
make_image "$tmp/v2.qcow2" 8M compat=v2
refused_untouched 'version 3' "$tmp/v2.qcow2" bitmap-add=x
make_image "$tmp/large.qcow2" 4T cluster_size=2M
refused_untouched 'more than 512M' "$tmp/large.qcow2" bitmap-add=x bitmap-granularity=512
img="$tmp/large.qcow2" edit bitmap-add=x bitmap-granularity=1k
check_clean "$tmp/large.qcow2"
refused_untouched 'too much memory' "$tmp/large.qcow2" bitmap-add=y bitmap-granularity=1k

# A lazy image is clean afterwards; one that was dirty is repaired first.
make_image "$tmp/lazy.qcow2" 8M lazy_refcounts=on
header_patch "$tmp/lazy.qcow2" 72 Q '|1'
img="$tmp/lazy.qcow2"
edit bitmap-add=x
bitmaps_are x:65536:auto

# Internal snapshots and extensions that nobody knows stay.
rm -f "$img"
make_image "$img" 8M
qemu-io -f qcow2 -c 'write -P 5 0 1M' "$img" > /dev/null
qemu-img snapshot -c s "$img"
edit bitmap-add=x bitmap-add=y
edit bitmap-remove=x
qemu-img snapshot -l "$img" | grep -w s
bitmaps_are y:65536:auto

# Killed at any write: the old ones, or the new ones.
requires strace -f -e trace=pwrite64 -e inject=pwrite64:signal=KILL:when=1 true
img="$tmp/k.qcow2"
make_image "$tmp/start.qcow2" 8M
img="$tmp/start.qcow2" edit bitmap-add=old
qemu-io -f qcow2 -c 'write 1M 64k' "$tmp/start.qcow2" > /dev/null
kills=0
for call in pwrite64 pwritev pwritev2 fdatasync; do
  for ((n = 1; n < 100; ++n)); do
    cp --sparse=always "$tmp/start.qcow2" "$img"
    if strace -f -qq -o /dev/null -e trace=$call -e inject=$call:signal=KILL:when=$n \
       "$NBDKIT" -r -U - "$PLUGIN" "$img" bitmap-clear=old bitmap-add=new --run true; then
      break
    fi
    kills=$((kills + 1))
    check_leaks_only "$img"
    case "$(bitmaps_of "$img" | tr '\n' ' ')" in
      "old:65536:auto ") [ "$(marked "$img" old)" = "$((1 << 20)) 65536" ] ;;
      "old:65536:auto new:65536:auto ") nothing_marked "$img" old ;;
      *) fail "neither old nor new" ;;
    esac
  done
done
echo "killed $kills times"
[ "$kills" -gt 4 ]
