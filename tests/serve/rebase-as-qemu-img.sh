#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# rebase= puts an image over another backing file, as "qemu-img rebase" does: qemu-img
# finds the same disk as before in the image, over the new backing file, and no more
# clusters in it than after its own rebase.  Random images and chains of many kinds.
# rebase-unsafe=true changes only the name, as with -u.
#
# Environment: SEED.

# shellcheck disable=SC2016

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/random.sh"
requires_tools
requires qemu-io --version

cd "$tmp"

rebase ()
{
  "$NBDKIT" -r -U - "$PLUGIN" "$@" --run true
}

# create QEMU-IMG-ARGUMENT...: an image with random options.
create ()
{
  local chosen

  any chosen "${image_options[@]}" compat=0.10
  qemu-img create -q -f qcow2 -o "$chosen" "$@"
}

declare -A formats
# chain NAME: makes a chain of 0 to 3 files, and sets $top and $format ("": none).
chain ()
{
  local n=$((RANDOM % 4)) i mib

  top='' format=''
  for ((i = 0; i < n; i++)); do
    any mib 2 4 6
    if [ $i = 0 ] && [ $((RANDOM % 2)) = 0 ]; then
      qemu-img create -q -f raw "$1.0" "${mib}M"
      top=$1.0 format=raw
    else
      create ${top:+-b "$top" -F "$format"} "$1.$i" "${mib}M"
      top=$1.$i format=qcow2
    fi
    formats[$top]=$format
    scribble "$format" "$top" "$mib"
  done
}

# What the image itself contains, in units.
own_units ()
{
  qemu-img map -f qcow2 --output=json "$1" |
    /usr/bin/python3 -c 'import json, sys
print(sum(x["length"] for x in json.load(sys.stdin)
          if x["depth"] == 0 and (x.get("present", True) or x["zero"])))'
}

for round in {1..6}; do
  any mib 3 4 5
  rm -rf ours theirs
  mkdir ours
  cd ours
  chain a
  old=$top old_format=$format
  chain b
  new=$top new_format=$format
  # Often the new one is part of the old chain, or over it.
  case $((RANDOM % 4)) in
    0) if [ -e a.1 ]; then new=a.0 new_format=${formats[a.0]}; fi ;;
    1) if [ -n "$old" ]; then
         create -b "$old" -F "$old_format" c 5M
         scribble qcow2 c 5
         new=c new_format=qcow2
       fi ;;
  esac
  create ${old:+-b "$old" -F "$old_format"} top.qcow2 "${mib}M"
  scribble qcow2 top.qcow2 "$mib"
  echo "round $round: ${old:-nothing} ($old_format) to ${new:-nothing} ($new_format)"
  cd ..
  cp -r --sparse=always ours theirs
  qemu-img convert -f qcow2 -O raw ours/top.qcow2 want.raw
  find ours -name '[abc]*' -exec sha256sum {} + > sums

  qemu-img rebase -q -f qcow2 -b "$new" ${new:+-F "$new_format"} theirs/top.qcow2
  any compress on off
  rebase ours/top.qcow2 rebase="$new" ${new:+backing-format="$new_format"} \
    compress=$compress

  check_clean ours/top.qcow2
  qemu-img compare -q -f qcow2 -F raw ours/top.qcow2 want.raw
  info=$(qemu-img info -f qcow2 --output=json ours/top.qcow2)
  grep -q "\"backing-filename\": \"$new\"" <<< "$info" || [ -z "$new" ]
  grep -q "\"backing-filename-format\": \"$new_format\"" <<< "$info" || [ -z "$new" ]
  # (QEMU 7.2 loses zeros of a version 2 image that had no backing file.)
  if [ -n "$old" ] || qemu-img compare -q -f qcow2 -F raw theirs/top.qcow2 want.raw; then
    [ "$(own_units ours/top.qcow2)" -le "$(own_units theirs/top.qcow2)" ]
  fi
  if [ -s sums ]; then sha256sum --quiet -c sums; fi

  # Again: there is nothing to do.  And it goes on.
  own=$(own_units ours/top.qcow2)
  rebase ours/top.qcow2 rebase="$new" ${new:+backing-format="$new_format"}
  [ "$(own_units ours/top.qcow2)" = "$own" ]
  qemu-img compare -q -f qcow2 -F raw ours/top.qcow2 want.raw
  scribble qcow2 ours/top.qcow2 "$mib"
  check_clean ours/top.qcow2
done
rm -rf ours theirs

# --- features ---

random_file a.raw 4194304
cp a.raw b.raw
qemu-io -f raw -c 'write -P 0 100k 1k' b.raw > io.log
truncate -s 3M b.raw

# check_rebased IMAGE: the disk is that of a.raw, over b.raw.
check_rebased ()
{
  check_clean "$1"
  qemu-img compare -q -f qcow2 -F raw "$1" a.raw
  qemu-img info -f qcow2 "$1" | grep -q 'backing file: b.raw'
}

# Compressed clusters in the image, and new ones.
qemu-img create -q -f qcow2 -b a.raw -F raw top.qcow2
qemu-io -f qcow2 -c 'write -c -P 7 2M 64k' top.qcow2 > io.log
qemu-io -f raw -c 'write -P 7 2M 64k' a.raw > io.log
rebase top.qcow2 rebase=b.raw backing-format=raw compress=on
check_rebased top.qcow2


# An external data file; but not a raw one.
qemu-img create -q -f qcow2 -o data_file=top.data -b a.raw -F raw data.qcow2
rebase data.qcow2 rebase=b.raw backing-format=raw
check_rebased data.qcow2
rebase data.qcow2 rebase=
check_clean data.qcow2
qemu-img compare -q -f qcow2 -F raw data.qcow2 a.raw
qemu-img create -q -f qcow2 -o data_file=raw.data,data_file_raw=on raw.qcow2 4M
for unsafe in true false; do
  refused_untouched 'cannot be rebased: it has a raw external data file' raw.qcow2 \
    rebase=b.raw backing-format=raw rebase-unsafe=$unsafe
done

# Encryption.
luks=(encrypt=luks iter-time=10 passphrase=abc)
"$NBDKIT" -U - "$PLUGIN" l.qcow2 create=auto backing-file=a.raw backing-format=raw \
  "${luks[@]}" --run true
rebase l.qcow2 passphrase=abc rebase=b.raw backing-format=raw
rm -f dump.raw
"$NBDKIT" -r -U - "$PLUGIN" l.qcow2 passphrase=abc --run 'nbdcopy "$uri" dump.raw'
cmp dump.raw a.raw
qemu-img check -q --object secret,id=s,data=abc \
  --image-opts driver=qcow2,encrypt.key-secret=s,file.filename=l.qcow2

# Bitmaps record nothing.
qemu-img create -q -f qcow2 -b a.raw -F raw m.qcow2
qemu-img bitmap --add m.qcow2 day
rebase m.qcow2 rebase=b.raw backing-format=raw
check_rebased m.qcow2
nbdinfo --map=qemu:dirty-bitmap:day -- [ qemu-nbd -r -f qcow2 -B day m.qcow2 ] > map
if grep dirty map; then fail "the bitmap has recorded something"; fi

# NBD exports, the old one, the new one, or the image itself.
PLUGIN=file start_nbdkit_as far -r -- b.raw
far=$uri
qemu-img create -q -f qcow2 -b a.raw -F raw n.qcow2
rebase n.qcow2 rebase="$far" backing-format=raw
check_clean n.qcow2
rm -f dump.raw
"$NBDKIT" -r -U - "$PLUGIN" n.qcow2 allow-uri="$far" --run 'nbdcopy "$uri" dump.raw'
cmp dump.raw a.raw
refused 'opens no connections.*allow-uri=' n.qcow2 rebase=a.raw backing-format=raw
rebase n.qcow2 rebase=a.raw backing-format=raw allow-uri="$far"
check_clean n.qcow2
qemu-img compare -q -f qcow2 -F raw n.qcow2 a.raw
qemu-img create -q -f qcow2 -b "$tmp/a.raw" -F raw i.qcow2 4M
truncate -s +8M i.qcow2
PLUGIN=file start_nbdkit_as image -- i.qcow2
rebase "$uri" lock=false rebase="$tmp/b.raw" backing-format=raw
stop_nbdkit image
qemu-img check -q i.qcow2
qemu-img compare -q -f qcow2 -F raw i.qcow2 a.raw

# --- only the name ---

qemu-img create -q -f qcow2 -b a.raw -F raw u.qcow2
qemu-io -f qcow2 -c 'write -P 5 1M 64k' u.qcow2 > io.log
qemu-img snapshot -c s u.qcow2
mkdir moved
cp a.raw moved
own=$(own_units u.qcow2)
rebase u.qcow2 rebase=moved/a.raw backing-format=raw rebase-unsafe=true
qemu-img info -f qcow2 u.qcow2 | grep -q 'backing file: moved/a.raw'
check_clean u.qcow2
[ "$own" = "$(own_units u.qcow2)" ]
# One that does not exist.
for name in later.raw http://example.com/disk; do
  rebase u.qcow2 rebase="$name" backing-format=raw rebase-unsafe=true serve=false
  qemu-img info -f qcow2 u.qcow2 | grep -q "backing file: $name"
done
rebase u.qcow2 rebase= rebase-unsafe=true
if qemu-img info -f qcow2 u.qcow2 | grep backing; then fail "it has a backing file"; fi
qemu-io -f qcow2 -c 'read -P 0 0 1M' -c 'read -P 5 1M 64k' -c 'read -P 0 2M 2M' u.qcow2
check_clean u.qcow2
# An image that does not state the format.
qemu-img create -q -f qcow2 -b a.raw -F raw f.qcow2
"$python" - f.qcow2 <<'PY'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    h = f.read(65536)
    at = h.index(struct.pack(">I", 0xe2792aca))
    f.seek(at)
    f.write(struct.pack(">I", 0x12345678))
PY
refused 'does not say which format its backing file' f.qcow2 rebase=b.raw \
  backing-format=raw
rebase f.qcow2 rebase=a.raw backing-format=raw rebase-unsafe=true
rebase f.qcow2 rebase=b.raw backing-format=raw
check_rebased f.qcow2
