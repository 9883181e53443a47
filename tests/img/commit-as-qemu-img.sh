#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img commit writes what an image contains into its backing file, and empties
# the image, as "qemu-img commit" does; -d does not empty it.  Random images and backing
# files of many kinds: qemu-img finds the same data as before in the image, and the same in
# the backing file as after its own commit.  What is refused changes nothing.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/random.sh"
. "$srcdir/lib/img.sh"

sizes=(4 6 9)
declare kind below top keep below_options top_options
sample 4 {1..10}
for round in "${sample[@]}"; do
  any kind raw qcow2 qcow2 chain
  any below "${sizes[@]}"
  any top "${sizes[@]}"
  any keep '' '' -d
  any below_options "${image_options[@]}"
  any top_options "${image_options[@]}"
  echo "round $round: $kind, ${below}M below ${top}M $keep"
  rm -f ./*.qcow2 ./*.raw ./*.data
  # In two directories, with relative names: each tool has its own chain.
  for tool in ours theirs; do rm -rf $tool; mkdir $tool; done
  cd ours
  format=qcow2
  case $kind in
    raw)
      format=raw
      qemu-img create -q -f raw base "${below}M" ;;
    qcow2)
      qemu-img create -q -f qcow2 -o "$below_options" base "${below}M" ;;
    chain)
      qemu-img create -q -f raw root 8M
      scribble raw root 8
      qemu-img create -q -f qcow2 -b root -F raw -o "$below_options" base "${below}M" ;;
  esac
  scribble $format base "$below"
  if [ "$kind" = qcow2 ] && [ $((RANDOM % 2)) = 0 ]; then
    qemu-img snapshot -c before base
    qemu-img convert -f qcow2 -l before -O raw base before.raw
  fi
  qemu-img create -q -f qcow2 -b base -F $format -o "$top_options" top.qcow2 "${top}M"
  if [ $((RANDOM % 3)) = 0 ]; then qemu-img bitmap --add top.qcow2 b; fi
  scribble qcow2 top.qcow2 "$top"
  cp --sparse=always ./* ../theirs
  cd ..
  qemu-img convert -f qcow2 -O raw ours/top.qcow2 want.raw

  cp --sparse=always ours/top.qcow2 before.qcow2
  qemu-img commit -q -f qcow2 ${keep:+-d} theirs/top.qcow2
  img commit -q ${keep:+-d} ours/top.qcow2

  check_clean ours/top.qcow2
  qemu-img compare -q -f qcow2 -F raw ours/top.qcow2 want.raw
  if [ $format = qcow2 ]; then check_clean ours/base; fi
  qemu-img compare -q -f $format -F $format ours/base theirs/base
  [ "$(virtual_size ours/base $format)" = "$(virtual_size theirs/base $format)" ]
  if [ -z "$keep" ]; then
    # Nothing is left in it.
    qemu-img map -f qcow2 --output=json ours/top.qcow2 > map
    if grep '"depth": 0, "present": true' map; then fail "it is not empty"; fi
  else
    cmp ours/top.qcow2 before.qcow2
  fi
  if [ -f ours/before.raw ]; then
    qemu-img convert -f qcow2 -l before -O raw ours/base after.raw
    cmp -n "$(stat -c %s ours/before.raw)" ours/before.raw after.raw
  fi
  qemu-img bitmap --add ours/top.qcow2 c
  # It goes on.
  scribble qcow2 ours/top.qcow2 "$top"
  check_clean ours/top.qcow2
done

rm -rf ours
mkdir ours
cd ours

# Compressed clusters, an external data file, and encryption, on both sides.
random_file data.raw 1048576
qemu-img convert -c -f raw -O qcow2 data.raw compressed.qcow2
qemu-img create -q -f qcow2 -o data_file=base.data base.qcow2 2M
qemu-img rebase -u -f qcow2 -b base.qcow2 -F qcow2 compressed.qcow2
img commit -q compressed.qcow2
check_clean base.qcow2
qemu-img convert -f qcow2 -O raw base.qcow2 as.raw
cmp -n 1048576 data.raw as.raw

qemu-img create -q -f qcow2 -o data_file=top.data -b base.qcow2 -F qcow2 top.qcow2
qemu-io -f qcow2 -c 'write -P 9 1M 512k' -c 'write -z 0 64k' top.qcow2 > io.log
qemu-img convert -f qcow2 -O raw top.qcow2 want.raw
img commit -q top.qcow2
check_clean top.qcow2
qemu-img compare -q -f qcow2 -F raw base.qcow2 want.raw
qemu-img compare -q -f qcow2 -F raw top.qcow2 want.raw
[ "$(stat -c %b top.data)" -le 8 ]
qemu-io -f qcow2 -c 'write -P 3 100k 10k' -c 'read -P 9 1M 512k' top.qcow2 > io.log
check_clean top.qcow2
# (Encryption: img/passphrase-of-each-layer.sh.)

# The bitmaps of the backing file record it, those of the image do not.
rm base.qcow2 top.qcow2
make_image base.qcow2 4M
qemu-img bitmap --add base.qcow2 day
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 top.qcow2
qemu-io -f qcow2 -c 'write 1M 64k' top.qcow2 > io.log
qemu-img bitmap --add top.qcow2 night
img commit -q top.qcow2
[ "$(marked base.qcow2 day)" = "$((1 << 20)) 65536" ]
nothing_marked top.qcow2 night

# --- what is refused ---

qemu-io -f qcow2 -c 'write 2M 64k' top.qcow2 > io.log
# untouched MESSAGE [IMAGE [OPTION...]]: neither is the image, top.qcow2, nor base.qcow2.
untouched ()
{
  local before

  before=$(fingerprint base.qcow2; fingerprint top.qcow2)
  img_refused "$1" commit "${@:3}" "${2-top.qcow2}"
  [ "$before" = "$(fingerprint base.qcow2; fingerprint top.qcow2)" ]
}
# over OPTIONS: the image, over something else.
over ()
{
  untouched "$1" "driver=qcow2,file.filename=top.qcow2,$2" --image-opts "${@:3}"
}
untouched 'cannot be committed: it has no backing file' base.qcow2
# As a raw file it would be overwritten from its header on.
over 'cannot be committed into a file of the format raw: .*"qcow2"' backing.driver=raw
over 'the format raw: .*"qcow2"' backing.driver=raw -d
over 'the format raw: .*"qcow2"' backing.driver=raw,backing.file.filename=base.qcow2 -d
# The image would then show another file than the one that has its data, or none.
truncate -s 1M other.raw
cp other.raw same.raw
other=backing.driver=raw,backing.file.filename=other.raw
over 'it names another backing file; name this one first' $other
untouched 'it has no backing file' driver=qcow2,file.filename=base.qcow2,$other --image-opts
qemu-img create -q -f qcow2 -o data_file=all.raw,data_file_raw=on all.qcow2 1M
qemu-io -f qcow2 -c 'write -P 7 0 64k' all.qcow2 > io.log
cp all.raw all.before
untouched 'it has a raw external data file' driver=qcow2,file.filename=all.qcow2,$other \
  --image-opts
cmp all.raw all.before
cmp other.raw same.raw
# A commit that empties nothing can be into any file, or into the same one by another name.
cp top.qcow2 kept.qcow2
qemu-img convert -f qcow2 -O raw top.qcow2 want.raw
qemu-img convert -f qcow2 -O raw base.qcow2 other.raw
img commit -q -d --image-opts driver=qcow2,file.filename=top.qcow2,$other
cmp top.qcow2 kept.qcow2
cmp other.raw want.raw
ln -s base.qcow2 link.qcow2
img commit -q --image-opts \
  driver=qcow2,file.filename=kept.qcow2,backing.file.filename=link.qcow2
qemu-img compare -q -f qcow2 -F raw kept.qcow2 want.raw
# Somebody uses the backing file, or the image.
start_nbdkit -r -- base.qcow2
untouched 'base[.]qcow2.*lock'
if qemu-img commit -q -f qcow2 top.qcow2 2> said; then fail "QEMU does it"; fi
stop_nbdkit
start_nbdkit -r -- top.qcow2
untouched 'top[.]qcow2.*lock'
stop_nbdkit
# Marked corrupt.
cp base.qcow2 good.qcow2
header_patch base.qcow2 76 I 2
untouched 'base[.]qcow2: the backing file of .*top[.]qcow2 cannot be written'
mv good.qcow2 base.qcow2
if [ "$(id -u)" != 0 ]; then
  chmod a-w base.qcow2
  untouched 'cannot be written: the file is not writable'
  chmod u+w base.qcow2
fi
# A snapshot would change.  (QEMU lets that happen.)
qemu-img snapshot -c s top.qcow2
untouched 'it has internal snapshots'
qemu-img snapshot -d s top.qcow2
# A backing file that cannot grow as the image has: one with snapshots in version 2.
make_image old.qcow2 1M compat=v2
qemu-img snapshot -c s old.qcow2
qemu-img create -q -f qcow2 -b old.qcow2 -F qcow2 wide.qcow2 4M
img_untouched old.qcow2 'old[.]qcow2' commit wide.qcow2
# A chain that leads back.
qemu-img rebase -u -f qcow2 -b top.qcow2 -F qcow2 base.qcow2
untouched 'loop'
