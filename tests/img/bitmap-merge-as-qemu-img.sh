#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img bitmap enables, disables, clears and merges as "qemu-img bitmap" does, in
# images with any cluster size, bitmaps with any granularity, in the same image or from
# another one; also several changes at once.  QEMU says what the bitmaps contain.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/random.sh"
. "$srcdir/lib/img.sh"
requires qemu-nbd --version

# All that QEMU can tell about the bitmaps of an image.
tell ()
{
  local names name

  names=$(bitmaps_of "$1")
  echo "$names"
  for name in $names; do
    marked "$1" "${name%%:*}"
  done
}

# make FILE SIZE BITMAP...: random granularities and marks.  Some record no more.
make ()
{
  local cluster granularity name i at len

  rm -f "$1"
  any cluster 512 4k 64k 2M
  make_image "$1" "$2" cluster_size="$cluster"
  for name in "${@:3}"; do
    any granularity 512 1k 4k 64k 1M 16M
    qemu-img bitmap --add -g "$granularity" "$1" "$name"
    for ((i = RANDOM % 6; i > 0; i--)); do
      at=$((RANDOM * 977 % ($2 / 512) * 512))
      len=$(($2 - at))
      if [ $((RANDOM % 4)) != 0 ] && [ $len -gt 65536 ]; then
        len=$(((RANDOM % 128 + 1) * 512))
      fi
      qemu-io -f qcow2 -c "write -z -u $at $len" "$1" > make.log
    done
    if [ $((RANDOM % 3)) = 0 ]; then qemu-img bitmap --disable "$1" "$name"; fi
  done
}

declare name what source granularity
sample 3 {1..6}
for round in "${sample[@]}"; do
  size=$(((RANDOM * 32768 + RANDOM) % 131072 * 512 + 512))
  echo "round $round: $size bytes"
  make disk.qcow2 $size a b c
  make other.qcow2 $size x y
  cp disk.qcow2 other.qcow2 ours
  cp disk.qcow2 other.qcow2 theirs
  for change in new 2 3; do
    any name a b c
    actions=()
    if [ $change = new ]; then
      any granularity 512 4k 1M
      name=new actions=(--add -g "$granularity")
    fi
    from=() sources=(a b c)
    if [ $((RANDOM % 3)) = 0 ]; then from=(-b other.qcow2 -F qcow2) sources=(x y); fi
    for what in --merge more more; do
      if [ "$what" = more ]; then any what --merge --merge --enable --disable --clear; fi
      actions+=("$what")
      if [ "$what" = --merge ]; then
        any source "${sources[@]}"
        actions+=("$source")
      fi
    done
    both bitmap "${actions[@]}" "${from[@]}" disk.qcow2 "$name"
  done
  check_clean ours/disk.qcow2
  diff <(tell theirs/disk.qcow2) <(tell ours/disk.qcow2) || fail "not as QEMU"
done

cd ours
# A bitmap that others were merged into is merged itself, in its larger pieces; a cleared one
# can be merged again.
make_image chain.qcow2 8M
for bits in 512 1M 4k; do
  qemu-img bitmap --add -g $bits chain.qcow2 b$bits
done
cp chain.qcow2 empty.qcow2
qemu-img bitmap --disable chain.qcow2 b1M
qemu-img bitmap --disable chain.qcow2 b4k
qemu-io -f qcow2 -c 'write 3M 512' chain.qcow2 > make.log
img bitmap --clear --merge b512 chain.qcow2 b1M
img bitmap --merge b1M --enable chain.qcow2 b4k
img bitmap --clear --disable chain.qcow2 b512
check_clean chain.qcow2
bitmaps_of chain.qcow2 | diff - <(printf '%s\n' b512:512: b1M:1048576: b4k:4096:auto)
for name in b1M b4k; do [ "$(marked chain.qcow2 $name)" = "$((3 << 20)) $((1 << 20))" ]; done
nothing_marked chain.qcow2 b512
# What was enabled records, for us and for QEMU; what was disabled does not.
img bitmap --disable empty.qcow2 b512
start_nbdkit file=empty.qcow2
nbdsh_run -c 'h.pwrite(b"x" * 512, 0)'
stop_nbdkit
qemu-io -f qcow2 -c 'write 4M 512' empty.qcow2 > make.log
nothing_marked empty.qcow2 b512
[ "$(marked empty.qcow2 b4k)" = "$(printf '0 4096\n%s 4096' $((4 << 20)))" ]
img bitmap --enable --enable empty.qcow2 b512
qemu-io -f qcow2 -c 'write 5M 512' empty.qcow2 > make.log
[ "$(marked empty.qcow2 b512)" = "$((5 << 20)) 512" ]

# A new image takes over the bitmaps of another one.
img create -q -f qcow2 new.qcow2 8M
img bitmap --add -g 4k --merge b4k -b chain.qcow2 -F qcow2 --disable new.qcow2 day
check_clean new.qcow2
[ "$(bitmaps_of new.qcow2)" = day:4096: ]
[ "$(marked new.qcow2 day)" = "$((3 << 20)) $((1 << 20))" ]

# --- what is refused, as by QEMU, with nothing changed ---

# refused PATTERN IMAGE BITMAP OPTION...
refused ()
{
  img_untouched "$2" "$1" bitmap "${@:4}" "$2" "$3"
}

for action in --enable --disable '--merge b512' '--disable --merge b4k'; do
  # shellcheck disable=SC2086
  refused '"x": there is no such' chain.qcow2 x $action
done
refused '"x": there is no such' chain.qcow2 b512 --disable --merge x
from=(-F qcow2 -b)
refused 'new[.]qcow2: bitmap "b4k": there is no such' chain.qcow2 b512 --merge b4k \
  "${from[@]}" new.qcow2
make_image size.qcow2 9M
qemu-img bitmap --add size.qcow2 b
refused 'size[.]qcow2: bitmap "b": it belongs to a disk of another size' chain.qcow2 b512 \
  --merge b "${from[@]}" size.qcow2
if qemu-img bitmap --merge b -b size.qcow2 -F qcow2 chain.qcow2 b512 2> said; then
  fail "QEMU merges bitmaps of disks of different sizes"
fi
make_image void.qcow2 8M
for name in b good; do img bitmap --add void.qcow2 $name; done
read -r entry _ <<< "$("$python" "$srcdir/lib/bitmaps.py" where void.qcow2 b)"
header_patch void.qcow2 $((entry + 12)) I '|1'
for action in --enable --disable '--merge good'; do
  # shellcheck disable=SC2086
  refused '"b": it is inconsistent' void.qcow2 b $action
done
refused '"b": it is inconsistent' void.qcow2 good --merge b
refused 'void[.]qcow2: bitmap "b": it is inconsistent' chain.qcow2 b512 --merge b \
  "${from[@]}" void.qcow2
echo text > text
refused 'text' chain.qcow2 b512 --merge b "${from[@]}" text
refused 'missing[.]qcow2' chain.qcow2 b512 --merge b "${from[@]}" missing.qcow2
make_image large.qcow2 4T cluster_size=2M
img bitmap --add -g 1k --disable large.qcow2 a
img bitmap --add -g 1k large.qcow2 b
refused 'too much memory' large.qcow2 a --enable

# A program that uses the other image as a writer keeps it from being read.
start_nbdkit file=new.qcow2
nbdsh_run -c 'h.pwrite(b"x", 0)'
refused 'lock' chain.qcow2 b512 --merge day "${from[@]}" new.qcow2
stop_nbdkit

# The image itself, by its name, or by another one.
img bitmap --merge b4k "${from[@]}" chain.qcow2 chain.qcow2 b512
[ "$(marked chain.qcow2 b512)" = "$((3 << 20)) $((1 << 20))" ]
refused 'read and written at the same time' chain.qcow2 b512 --merge b4k "${from[@]}" \
  ./chain.qcow2
