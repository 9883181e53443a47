#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The manifest of a repository says which size each file has, and its checksum, which is that
# of sha256sum.  A file that is missing, was cut off, or belongs to another repository is
# refused, and the next backup is a full one; any other byte is found with --verify.  After old
# generations were merged, the manifest knows what has changed; the checksum of the full backup
# only with --verify.  restore writes nothing into the repository.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
cd ours

# sums KNOWN: sha256sum finds what the manifest says, of so many files.
sums ()
{
  img restore --list --output=json backups > ../list
  "$python" -c '
import json, os
for g in json.load(open("../list")):
    assert g["file-size"] == os.path.getsize("backups/" + g["file"]), g
    if "sha256" in g:
        print(g["sha256"] + "  backups/" + g["file"])' > ../sums
  sha256sum -c ../sums
  [ "$(wc -l < ../sums)" = "$1" ]
  img restore --verify backups | grep "generations, $1 with a checksum: no errors"
}
# refused PATTERN: by restore, and by --verify.
refused ()
{
  img_refused "$1" restore backups x.raw
  img_refused "$1" restore --verify backups
}
# full REASON: the next backup.
full ()
{
  mkdir kept
  cp -r a.qcow2 backups kept
  img backup a.qcow2 backups > ../out
  grep "full backup .*$1" ../out
  img restore --verify backups x.raw | grep ', verified'
  qemu-img compare -f qcow2 -F raw a.qcow2 x.raw
  rm -r backups
  mv kept/* .
  rmdir kept
}

for i in a b; do
  make_image $i.qcow2 8M
  io $i.qcow2 'write -P 1 0 1M'
done
for n in 1 2 3; do
  for i in a b; do
    io $i.qcow2 "write -P 2$n ${n}M 64k" 'write -P 7 5M 4k'
  done
  io a.qcow2 'write -P 8 6M 200k'
  img backup -q a.qcow2 backups
  img backup -q b.qcow2 others
done
sums 3

mkdir good
cp -r a.qcow2 backups good
truncate -s -64k backups/000002.qcow2
refused '000002.qcow2: the file of generation 2 has another size'
full 'a file of the newest backup is missing, or is not what it was'
rm backups/000002.qcow2
refused '000002.qcow2: .*No such file'
full 'a file of the newest backup is missing, or is not what it was'
cp others/000001.qcow2 backups
cp good/backups/000002.qcow2 backups
refused '000001.qcow2: the file of generation 1 has another size'
cp good/backups/000001.qcow2 backups
# Exchanged for one another, of the same size.
cp good/backups/000002.qcow2 backups/000003.qcow2
cp good/backups/000003.qcow2 backups/000002.qcow2
[ "$(stat -c %s good/backups/00000[23].qcow2 | uniq | wc -l)" = 1 ]
img_refused 'lies over another file than the manifest says' restore backups x.raw
full 'a file of the newest backup is missing, or is not what it was'
cp good/backups/00000[23].qcow2 backups
# The data of one byte.
at="$(grep -obUaPm 1 '\x08{512}' backups/000001.qcow2 | cut -d : -f 1 | head -n 1)"
printf x | dd of=backups/000001.qcow2 bs=1 seek="$at" conv=notrunc status=none
img restore -q backups x.raw
refusal='000001.qcow2: the file of generation 1 has another checksum'
img_refused "$refusal" restore --verify backups x.raw
img_refused "$refusal" restore --verify backups
# What is damaged is not merged.
truncate -s +64k backups/000001.qcow2
before="$(sha256sum backups/00000[123].*)"
img_refused '000001.qcow2: the file of generation 1 has another size' backup -q --keep 3 \
  a.qcow2 backups
[ "$before" = "$(sha256sum backups/00000[123].*)" ]
img restore --list backups | grep '^ *4 .*full'

# Nothing is restored in place of a generation.
ln -s backups/000002.qcow2 link
before="$(sha256sum backups/*)"
for target in backups/000002.qcow2 "$PWD/backups/manifest.json" backups/new link; do
  img_refused "$target: it is in the repository" restore -g 4 backups "$target"
done
[ "$before" = "$(sha256sum backups/*)" ]

# Merged.
rm -r backups
cp -r good/* .
img backup -q --keep 2 a.qcow2 backups
sums 1
img backup -q --verify --keep 2 a.qcow2 backups
sums 2
img restore --output=json backups x.raw | grep '"target": "x.raw"'
qemu-img compare -f qcow2 -F raw a.qcow2 x.raw

# edit CODE: of the manifest m.
edit ()
{
  "$python" -c "
import json
m = json.load(open('backups/manifest.json'))
$1
json.dump(m, open('backups/manifest.json', 'w'))"
}
# Without checksums, nothing is called verified.
edit 'for g in m["generations"]: del g["sha256"]'
img restore --verify backups | grep '2 generations, 0 with a checksum: nothing was compared'
img restore --verify backups x.raw | grep 'not verified: files without a checksum: 2'
# There is no number after the last one.
edit 'm["generations"][-1]["number"] = 2 ** 63 - 1'
img_refused 'there is no number for the next generation' backup a.qcow2 backups
