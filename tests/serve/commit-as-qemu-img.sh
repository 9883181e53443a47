#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# commit=on writes what an image contains into its backing file, and empties the image, as
# "qemu-img commit" does; commit=keep does not empty it, as with -d.  Random images and
# backing files of many kinds: qemu-img finds the same data as before in the image, and
# the same in the backing file as after its own commit.  What is refused changes nothing.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/random.sh"
requires_tools
requires qemu-nbd --version

cd "$tmp"

commit ()
{
  "$NBDKIT" -r -U - "$PLUGIN" "$@" --run true
}

sizes=(4 6 9)
declare kind below top keep below_options top_options
sample 4 {1..10}
for round in "${sample[@]}"; do
  any kind raw qcow2 qcow2 chain
  any below "${sizes[@]}"
  any top "${sizes[@]}"
  any keep on on keep
  any below_options "${image_options[@]}"
  any top_options "${image_options[@]}"
  echo "round $round: $kind, ${below}M below ${top}M, commit=$keep"
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
  drop=(); if [ "$keep" = keep ]; then drop=(-d); fi
  qemu-img commit -q -f qcow2 "${drop[@]}" theirs/top.qcow2
  commit ours/top.qcow2 "commit=$keep"

  check_clean ours/top.qcow2
  qemu-img compare -q -f qcow2 -F raw ours/top.qcow2 want.raw
  if [ $format = qcow2 ]; then check_clean ours/base; fi
  qemu-img compare -q -f $format -F $format ours/base theirs/base
  [ "$(virtual_size ours/base $format)" = "$(virtual_size theirs/base $format)" ]
  if [ "$keep" = on ]; then
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

# Compressed clusters, an external data file, and encryption, on both sides.
rm -rf ours theirs
random_file data.raw 1048576
qemu-img convert -c -f raw -O qcow2 data.raw compressed.qcow2
qemu-img create -q -f qcow2 -o data_file=base.data base.qcow2 2M
qemu-img rebase -u -f qcow2 -b base.qcow2 -F qcow2 compressed.qcow2
commit compressed.qcow2 commit=on
check_clean base.qcow2
qemu-img convert -f qcow2 -O raw base.qcow2 as.raw
cmp -n 1048576 data.raw as.raw

qemu-img create -q -f qcow2 -o data_file=top.data -b base.qcow2 -F qcow2 top.qcow2
qemu-io -f qcow2 -c 'write -P 9 1M 512k' -c 'write -z 0 64k' top.qcow2 > io.log
qemu-img convert -f qcow2 -O raw top.qcow2 want.raw
commit top.qcow2 commit=on
check_clean top.qcow2
qemu-img compare -q -f qcow2 -F raw base.qcow2 want.raw
qemu-img compare -q -f qcow2 -F raw top.qcow2 want.raw
[ "$(stat -c %b top.data)" -le 8 ]
qemu-io -f qcow2 -c 'write -P 3 100k 10k' -c 'read -P 9 1M 512k' top.qcow2 > io.log
check_clean top.qcow2

echo secret > secret
random_file l0.raw 2097152
luks=(encrypt=luks iter-time=10 passphrase=+secret)
"$NBDKIT" -U - "$PLUGIN" lbase.qcow2 create=2M "${luks[@]}" --run 'nbdcopy want.raw "$uri"'
"$NBDKIT" -U - "$PLUGIN" ltop.qcow2 create=auto backing-file=lbase.qcow2 \
  backing-format=qcow2 "${luks[@]}" --run 'nbdcopy l0.raw "$uri"'
"$NBDKIT" -U - "$PLUGIN" ltop.qcow2 passphrase=+secret commit=on \
  --run 'nbdcopy "$uri" l1.raw'
"$NBDKIT" -U - "$PLUGIN" lbase.qcow2 passphrase=+secret --run 'nbdcopy "$uri" l2.raw'
cmp l0.raw l1.raw
cmp l1.raw l2.raw

# The bitmaps of the backing file record it, those of the image do not.
rm -f base.qcow2 top.qcow2
make_image base.qcow2 4M
qemu-img bitmap --add base.qcow2 day
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 top.qcow2
qemu-io -f qcow2 -c 'write 1M 64k' top.qcow2 > io.log
qemu-img bitmap --add top.qcow2 night
commit top.qcow2 commit=on
[ "$(marked base.qcow2 day)" = "$((1 << 20)) 65536" ]
nothing_marked top.qcow2 night

# --- what is refused ---

qemu-io -f qcow2 -c 'write 2M 64k' top.qcow2 > io.log
# both_untouched MESSAGE PARAMETER...
both_untouched ()
{
  local before

  before=$(fingerprint base.qcow2)
  refused_untouched "$1" top.qcow2 "${@:2}"
  [ "$before" = "$(fingerprint base.qcow2)" ]
}
refused_untouched 'cannot be committed: it has no backing file' base.qcow2 commit=on
both_untouched 'commit=on cannot be used with backing=deny' commit=on backing=deny
both_untouched 'commit=on cannot be used with flatten=true' commit=on flatten=true
both_untouched 'untrusted=true cannot be used with commit=keep' commit=keep untrusted=true
both_untouched 'commit=maybe: must be off, on or keep' commit=maybe
# As a raw file it would be overwritten from its header on.
both_untouched 'cannot be committed into a file of the format raw: .*"qcow2"' commit=on backing-format=raw
both_untouched 'the format raw: .*"qcow2"' commit=keep backing-format=raw
# The image would then show another file than the one that has its data, or none.
other=(backing="$tmp/other.raw" backing-format=raw)
truncate -s 1M other.raw
cp other.raw same.raw
both_untouched 'it names another backing file; name this one first, with rebase=' commit=on "${other[@]}"
both_untouched 'format raw: .*"qcow2"' commit=keep backing="$tmp/base.qcow2" \
  backing-format=raw
refused_untouched 'it has no backing file' base.qcow2 commit=on "${other[@]}"
qemu-img create -q -f qcow2 -o data_file=all.raw,data_file_raw=on all.qcow2 1M
qemu-io -f qcow2 -c 'write -P 7 0 64k' all.qcow2 > io.log
cp all.raw all.before
refused_untouched 'it has a raw external data file' all.qcow2 commit=on "${other[@]}"
cmp all.raw all.before
cmp other.raw same.raw
# A commit that empties nothing can be into any file, or into the same one by another name.
cp top.qcow2 kept.qcow2
qemu-img convert -f qcow2 -O raw top.qcow2 want.raw
qemu-img convert -f qcow2 -O raw base.qcow2 other.raw
commit top.qcow2 commit=keep "${other[@]}"
cmp top.qcow2 kept.qcow2
cmp other.raw want.raw
ln -s base.qcow2 link.qcow2
commit kept.qcow2 commit=on backing="$tmp/link.qcow2"
qemu-img compare -q -f qcow2 -F raw kept.qcow2 want.raw
# Somebody uses the backing file, or the image.
start_nbdkit -r -- base.qcow2
both_untouched 'base[.]qcow2.*lock' commit=on
if qemu-img commit -q -f qcow2 top.qcow2 2> said; then fail "QEMU does it"; fi
stop_nbdkit
start_nbdkit -r -- top.qcow2
both_untouched 'top[.]qcow2.*lock' commit=on
stop_nbdkit
# Marked corrupt.
cp base.qcow2 good.qcow2
header_patch base.qcow2 76 I 2
both_untouched 'base[.]qcow2: the backing file of .*top[.]qcow2 cannot be written' commit=on
mv good.qcow2 base.qcow2
if [ "$(id -u)" != 0 ]; then
  chmod a-w base.qcow2
  both_untouched 'cannot be written: the file is not writable' commit=on
  chmod u+w base.qcow2
fi
# A snapshot would change.  (QEMU lets that happen.)
qemu-img snapshot -c s top.qcow2
both_untouched 'it has internal snapshots' commit=on
qemu-img snapshot -d s top.qcow2
# A backing file that cannot grow as the image has: one with snapshots in version 2.
make_image old.qcow2 1M compat=v2
qemu-img snapshot -c s old.qcow2
qemu-img create -q -f qcow2 -b old.qcow2 -F qcow2 wide.qcow2 4M
before=$(fingerprint old.qcow2)
refused_untouched 'old[.]qcow2' wide.qcow2 commit=on
[ "$before" = "$(fingerprint old.qcow2)" ]
# A chain that leads back.
qemu-img rebase -u -f qcow2 -b top.qcow2 -F qcow2 base.qcow2
both_untouched 'loop' commit=on
both_untouched 'loop' commit=on lock=false
