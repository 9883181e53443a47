#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Backups of images that nobody uses: what is stored shows the disk after any change, of its
# size too, in the formats that are asked for, and restore writes it to a file, an image or an
# NBD export.  --keep leaves the newest.  What is not possible is refused in one line, which
# names the file, and leaves image and repository as they were.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
cd ours

# backed_up KIND OPTION...: makes a backup of that kind, and compares it.
number=0
backed_up ()
{
  local kind="$1"
  shift

  img backup "$@" a.qcow2 backups | tee ../out
  grep -q "^a.qcow2: $kind backup " ../out
  number=$((number + 1))
  qemu-img convert -f qcow2 -O raw a.qcow2 $number.raw
  img restore backups restored.raw
  cmp restored.raw $number.raw
  check_clean a.qcow2
}

qemu-img create -q -f qcow2 base.qcow2 8M
io base.qcow2 'write -P 1 0 3M'
make_image a.qcow2 8M backing_file=base.qcow2,backing_fmt=qcow2,cluster_size=4k
io a.qcow2 'write -P 2 1M 1M'
backed_up full
grep 'it is the first backup' ../out
io a.qcow2 'write -P 3 1500k 30k' 'write -z 0 100k' 'discard 2M 512k'
backed_up incremental -c
backed_up incremental
[ "$(stat -c %s backups/000003.qcow2)" -lt 400000 ]
qemu-img resize -q a.qcow2 10M
io a.qcow2 'write -P 4 9M 64k'
backed_up incremental --verify
# What is lost is in no bitmap.
img resize -q --shrink a.qcow2 1M
img resize -q a.qcow2 10M
io a.qcow2 'write -P 5 0 4k'
backed_up incremental --verify
img resize -q --shrink a.qcow2 5M
backed_up full
grep 'the disk has become smaller' ../out
backed_up full --full -O raw
io a.qcow2 'write -P 6 1M 64k'
backed_up incremental

# All of them.
for ((i = 1; i <= number; ++i)); do
  img restore -g $i -O qcow2 backups restored.qcow2
  qemu-img compare -q -f qcow2 -F raw restored.qcow2 $i.raw
done
img restore --list backups | tee ../list
[ "$(wc -l < ../list)" = $((number + 1)) ]
head -c 10M /dev/urandom > device.raw
cd ..
# shellcheck disable=SC2016
(cd ours && "$NBDKIT" -U - file device.raw --run "'$IMG' restore -g 5 backups \"\$uri\"")
cd ours
cmp device.raw 5.raw

# Old ones go, over a raw file, too.
for keep in 7 2 1; do
  img backup --keep $keep a.qcow2 backups > ../out
  cat ../out
  number=$((number + 1))
  [ $keep = 7 ] || grep "older backups removed: $((was + 1 - keep))\$" ../out
  [ -f "$(sed -n 's/.* in //p' ../out)" ]
  was=$keep
  [ "$(img restore --list backups | wc -l)" = $((keep + 1)) ]
  img restore backups restored.raw
  cmp restored.raw 8.raw
done
ls backups
[ "$(ls backups)" = "$(printf '000007.raw\nmanifest.json')" ]

# --- refused ---

# untouched PATTERN ARGUMENT...: neither the image nor the repository changes.
untouched ()
{
  local before
  before="$(sha256sum ./*.qcow2 ./*.raw backups/*)"
  img_refused "$@"
  [ "$before" = "$(sha256sum ./*.qcow2 ./*.raw backups/*)" ] || fail "changed: $*"
}

untouched 'raw images do not support incremental backups' backup -f raw 1.raw backups
make_image other.qcow2 1M compat=0.10
untouched 'other.qcow2: .*version' backup other.qcow2 backups
img_refused 'other.qcow2: .*version' backup other.qcow2 new/new/repository
[ ! -e new ]
rm other.qcow2
make_image other.qcow2 1M data_file=data,data_file_raw=on
untouched 'other.qcow2: .*data file' backup other.qcow2 backups
untouched 'nothing.qcow2: .*No such file' backup nothing.qcow2 backups
qemu-img create -q -f qcow2 --object secret,id=s,data=x \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 luks.qcow2 1M
untouched 'luks.qcow2: the disk is encrypted, and its backup would not be' backup \
  --object secret,id=s,data=x luks.qcow2 backups
img backup -q --unencrypted --object secret,id=s,data=x luks.qcow2 luks
start_nbdkit a.qcow2
hold_connection
untouched 'a.qcow2: .*lock' backup a.qcow2 backups
drop_connections
stop_nbdkit
(exec 8>> backups/.lock; flock 8; exec sleep 1000) &
helper_pids+=($!)
until ! flock -n backups/.lock true; do :; done
untouched 'backups: another backup is being made there' backup a.qcow2 backups
kill $!
wait $! || :
untouched 'there is no generation 3' restore -g 3 backups restored.raw
untouched 'what is restored to' restore backups
untouched "cannot be used with --control|No such file" --control nosocket backup disk backups
mkdir empty
img_refused 'empty: there are no backups' restore --list empty
echo '{' > empty/manifest.json
img_refused 'empty: manifest.json: it is no JSON' restore --list empty
img_refused 'empty: manifest.json: it is no JSON' backup a.qcow2 empty
rm empty/manifest.json
cp backups/000007.raw empty
img_refused 'empty: there is 000007.raw, but no manifest.json' backup a.qcow2 empty
for i in '../x' '000007.raw/x' '.lock'; do
  sed "s|\"000007.raw\"|\"$i\"|" backups/manifest.json > empty/manifest.json
  img_refused 'the name of a file is wrong' restore empty restored.raw
done
# Metadata that was damaged: the offset of the refcount table.
cp -r backups damaged
qemu-io -f qcow2 -c 'write -q -P 7 0 1M' a.qcow2
img backup -q a.qcow2 damaged
newest=damaged/000012.qcow2
header_patch "$newest" 54 B 7
img_refused "$newest" restore damaged restored.raw
rm -r damaged
# A file that was changed.
img backup -q a.qcow2 backups
qemu-img rebase -u -f qcow2 -b other.qcow2 -F qcow2 backups/000012.qcow2
img_refused '000012.qcow2: the file of generation 12 lies over another file' restore backups \
  restored.raw
rm backups/000012.qcow2
img_refused '000012.qcow2: .*No such file' restore backups restored.raw

# Files that are no generations stay, and so do those that an older manifest does not know.
qemu-img create -q -f qcow2 s.qcow2 1M
img backup -q s.qcow2 stays
cp s.qcow2 stays/1.qcow2
cp s.qcow2 stays/2026.raw
cp stays/manifest.json old
img backup -q s.qcow2 stays
img backup -q s.qcow2 stays
ls stays/1.qcow2 stays/2026.raw
cp old stays/manifest.json
cp -r stays before
status=0
img backup s.qcow2 stays 2> said || status=$?
cat said
[ "$status" = 1 ]
grep 'is it an old one' said
diff -r stays before

# The image of another disk: what there is of the first one stays, whatever --keep says.
img backup -q s.qcow2 mixed
qemu-img create -q -f qcow2 other.qcow2 1M
img backup --keep 1 other.qcow2 mixed > said 2>&1
cat said
grep 'does not have the bitmap of the newest backup' said
grep 'keep: nothing was removed' said
[ "$(img restore --list mixed | wc -l)" = 3 ]
img backup -q --keep 1 other.qcow2 mixed
[ "$(img restore --list mixed | wc -l)" = 4 ]
img backup -q --full --keep 1 other.qcow2 mixed
[ "$(img restore --list mixed | wc -l)" = 2 ]

# A disk that is found corrupt when the snapshot is removed: the L1 table has no refcount.
qemu-img create -q -f qcow2 c.qcow2 1M
img backup -q c.qcow2 unclean
io c.qcow2 'write -P 1 0 1M'
l1="$("$python" "$srcdir/lib/patch.py" c.qcow2 | sed -n 's/^l1 //p')"
header_patch c.qcow2 "rb+$((l1 / 65536 * 2))" H 0
status=0
img backup --keep 1 c.qcow2 unclean > said 2>&1 || status=$?
cat said
[ "$status" = 1 ]
grep 'c.qcow2: incremental backup 2' said
grep 'c.qcow2: this backup is complete, but its snapshot and bitmaps could not be removed' said
[ "$(img restore --list unclean | wc -l)" = 3 ]
