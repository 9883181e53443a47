#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# bitmap-enable, bitmap-disable and bitmap-merge do what "qemu-img bitmap" does, in images
# with any cluster size, for bitmaps with any granularity, in the same image or from
# another one; also several changes at once.  QEMU says what the bitmaps contain.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/random.sh"
requires_tools
requires qemu-nbd --version

cd "$tmp"

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

edit ()
{
  "$NBDKIT" -r -U - "$PLUGIN" "$@" --run true
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

declare third name source
sample 3 {1..6}
for round in "${sample[@]}"; do
  size=$(((RANDOM * 32768 + RANDOM) % 131072 * 512 + 512))
  echo "round $round: $size bytes"
  make start.qcow2 $size a b c
  make other.qcow2 $size x y
  from=()
  qemu_from=()
  sources=(a b c new)
  if [ $((RANDOM % 3)) = 0 ]; then
    from=(bitmap-from=other.qcow2)
    qemu_from=(-b other.qcow2 -F qcow2)
    sources=(x y)
  fi
  ours=()
  theirs=()
  if [ ${#from[@]} != 0 ]; then first=merge; else first=add; fi
  any third add merge enable disable clear
  for what in $first merge $third merge; do
    any name a b c
    case $what in
      add)
        # It takes part in the merges that follow, if they are in the same image.
        if [[ "${ours[*]}" = *=new* ]]; then continue; fi
        ours+=(bitmap-add=new)
        theirs+=("--add new")
        ;;
      merge)
        any source "${sources[@]}"
        if [ "$source" = new ] && [[ "${ours[*]}" != *=new* ]]; then source=a; fi
        ours+=("bitmap-merge=$source" "bitmap-into=$name")
        theirs+=("--merge $source $name")
        ;;
      *)
        ours+=("bitmap-$what=$name")
        theirs+=("--$what $name")
        ;;
    esac
  done

  cp start.qcow2 theirs.qcow2
  cp start.qcow2 ours.qcow2
  for change in "${theirs[@]}"; do
    read -r action one two <<< "$change"
    if [ "$action" = --merge ]; then
      qemu-img bitmap --merge "$one" "${qemu_from[@]}" theirs.qcow2 "$two"
    else
      qemu-img bitmap "$action" theirs.qcow2 "$one"
    fi
  done
  edit ours.qcow2 "${ours[@]}" "${from[@]}"
  check_clean ours.qcow2
  diff <(tell theirs.qcow2) <(tell ours.qcow2) || fail "not as QEMU: ${ours[*]} ${from[*]}"
done

# One after the other, and all at once: a bitmap that others are merged into is merged
# itself, in its larger pieces; a cleared one can be merged again.
make_image chain.qcow2 8M
for bits in 512 1M 4k; do
  qemu-img bitmap --add -g $bits chain.qcow2 b$bits
done
cp chain.qcow2 empty.qcow2
qemu-img bitmap --disable chain.qcow2 b1M
qemu-img bitmap --disable chain.qcow2 b4k
qemu-io -f qcow2 -c 'write 3M 512' chain.qcow2 > make.log
edit chain.qcow2 bitmap-merge=b512 bitmap-into=b1M bitmap-merge=b1M bitmap-into=b4k \
  bitmap-clear=b512 bitmap-enable=b4k bitmap-disable=b512
check_clean chain.qcow2
bitmaps_of chain.qcow2 | diff - <(printf '%s\n' b512:512: b1M:1048576: b4k:4096:auto)
for name in b1M b4k; do [ "$(marked chain.qcow2 $name)" = "$((3 << 20)) $((1 << 20))" ]; done
nothing_marked chain.qcow2 b512
# What was enabled records, for us and for QEMU; what was disabled does not.
edit empty.qcow2 bitmap-disable=b512
start_nbdkit file=empty.qcow2
nbdsh_run -c 'h.pwrite(b"x" * 512, 0)'
stop_nbdkit
qemu-io -f qcow2 -c 'write 4M 512' empty.qcow2 > make.log
nothing_marked empty.qcow2 b512
[ "$(marked empty.qcow2 b4k)" = "$(printf '0 4096\n%s 4096' $((4 << 20)))" ]
edit empty.qcow2 bitmap-enable=b512 bitmap-enable=b512
qemu-io -f qcow2 -c 'write 5M 512' empty.qcow2 > make.log
[ "$(marked empty.qcow2 b512)" = "$((5 << 20)) 512" ]

# A new image takes over the bitmaps of another one.
edit new.qcow2 create=8M bitmap-granularity=4k bitmap-add=day bitmap-merge=b4k \
  bitmap-into=day bitmap-from=chain.qcow2 bitmap-disable=day
check_clean new.qcow2
[ "$(bitmaps_of new.qcow2)" = day:4096: ]
[ "$(marked new.qcow2 day)" = "$((3 << 20)) $((1 << 20))" ]

# What is refused, as by QEMU, with nothing changed.
img=chain.qcow2
for change in bitmap-enable=x bitmap-disable=x 'bitmap-merge=x bitmap-into=b512' \
              'bitmap-merge=b512 bitmap-into=x' \
              'bitmap-disable=b4k bitmap-merge=x bitmap-into=b512'; do
  # shellcheck disable=SC2086
  refused_untouched '"x": there is no such' $img $change
done
refused_untouched 'new[.]qcow2: bitmap "b4k": there is no such' $img bitmap-merge=b4k \
  bitmap-into=b512 bitmap-from=new.qcow2
make_image size.qcow2 9M
qemu-img bitmap --add size.qcow2 b
refused_untouched 'size[.]qcow2: bitmap "b": it belongs to a disk of another size' $img \
  bitmap-merge=b bitmap-into=b512 bitmap-from=size.qcow2
if qemu-img bitmap --merge b -b size.qcow2 -F qcow2 chain.qcow2 b512 2> said; then
  fail "QEMU merges bitmaps of disks of different sizes"
fi
make_image void.qcow2 8M
edit void.qcow2 bitmap-add=b bitmap-add=good
read -r entry _ <<< "$("$python" "$srcdir/lib/bitmaps.py" where void.qcow2 b)"
header_patch void.qcow2 $((entry + 12)) I '|1'
for change in bitmap-enable=b bitmap-disable=b 'bitmap-merge=b bitmap-into=good' \
              'bitmap-merge=good bitmap-into=b'; do
  # shellcheck disable=SC2086
  refused_untouched '"b": it is inconsistent' void.qcow2 $change
done
refused_untouched 'void[.]qcow2: bitmap "b": it is inconsistent' $img bitmap-merge=b \
  bitmap-into=b512 bitmap-from=void.qcow2
echo text > text
refused_untouched 'text' $img bitmap-merge=b bitmap-into=b512 bitmap-from=text
refused_untouched 'missing[.]qcow2' $img bitmap-merge=b bitmap-into=b512 \
  bitmap-from=missing.qcow2
refused_untouched 'bitmap-from= names the image itself' $img bitmap-merge=b4k \
  bitmap-into=b512 bitmap-from=$img
refused_untouched 'bitmap-merge= and bitmap-into= belong together' $img bitmap-merge=b4k \
  bitmap-merge=b1M bitmap-into=b512
refused_untouched 'too much memory' "$(
  make_image large.qcow2 4T cluster_size=2M
  edit large.qcow2 bitmap-granularity=1k bitmap-add=a bitmap-disable=a bitmap-add=b
  echo large.qcow2)" bitmap-enable=a

# A program that uses the other image as a writer keeps it from being read.
start_nbdkit file=new.qcow2
nbdsh_run -c 'h.pwrite(b"x", 0)'
refused_untouched 'lock' $img bitmap-merge=day bitmap-into=b512 bitmap-from=new.qcow2
stop_nbdkit
