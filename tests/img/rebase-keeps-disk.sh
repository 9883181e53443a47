#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img rebase puts an image over another backing file, as "qemu-img rebase"
# does: qemu-img finds the same disk as before in the image, over the new backing file, and
# no more clusters in it than after its own rebase.  Random images and chains of many kinds.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/random.sh"
. "$srcdir/lib/img.sh"

# create QEMU-IMG-ARGUMENT...: an image with random options.
create ()
{
  local chosen

  any chosen "${image_options[@]}" compat=0.10
  qemu-img create -q -f qcow2 -o "$chosen" "$@"
}

declare compress
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
  any compress on ''
  img rebase -b "$new" ${new:+-F "$new_format"} ${compress:+-c} ours/top.qcow2

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
  img rebase -b "$new" ${new:+-F "$new_format"} ours/top.qcow2
  [ "$(own_units ours/top.qcow2)" = "$own" ]
  qemu-img compare -q -f qcow2 -F raw ours/top.qcow2 want.raw
  scribble qcow2 ours/top.qcow2 "$mib"
  check_clean ours/top.qcow2
done
rm -rf ours
mkdir ours
cd ours

# --- features ---

random_file a.raw 4194304
cp a.raw b.raw
qemu-io -f raw -c 'write -P 0 100k 1k' b.raw > io.log
truncate -s 3M b.raw
to_b=(-b b.raw -F raw)

# shows_a IMAGE: the disk is that of a.raw.
shows_a ()
{
  check_clean "$1"
  qemu-img compare -q -f qcow2 -F raw "$1" a.raw
}
# And it is over b.raw.
check_rebased ()
{
  shows_a "$1"
  qemu-img info -f qcow2 "$1" | grep -q 'backing file: b.raw'
}

# Compressed clusters in the image, and new ones.
qemu-img create -q -f qcow2 -b a.raw -F raw top.qcow2
qemu-io -f qcow2 -c 'write -c -P 7 2M 64k' top.qcow2 > io.log
qemu-io -f raw -c 'write -P 7 2M 64k' a.raw > io.log
img rebase "${to_b[@]}" -c top.qcow2
check_rebased top.qcow2

# An external data file.
qemu-img create -q -f qcow2 -o data_file=top.data -b a.raw -F raw data.qcow2
img rebase "${to_b[@]}" data.qcow2
check_rebased data.qcow2
img rebase -b '' data.qcow2
shows_a data.qcow2

# Encryption.
secret=(--object "secret,id=s,data=abc")
luks=driver=qcow2,file.filename=luks.qcow2,encrypt.key-secret=s
qemu-img create -q -f qcow2 "${secret[@]}" -b a.raw -F raw \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 luks.qcow2
img rebase "${secret[@]}" --image-opts "${to_b[@]}" $luks
qemu-img check -q "${secret[@]}" --image-opts $luks
qemu-img compare -q "${secret[@]}" --image-opts $luks driver=raw,file.filename=a.raw

# Bitmaps record nothing.
qemu-img create -q -f qcow2 -b a.raw -F raw bitmap.qcow2
qemu-img bitmap --add bitmap.qcow2 day
img rebase "${to_b[@]}" bitmap.qcow2
check_rebased bitmap.qcow2
nothing_marked bitmap.qcow2 day

# NBD exports, the new one, the old one, or the image itself.
PLUGIN=file start_nbdkit_as far -r -- b.raw
far=$uri
qemu-img create -q -f qcow2 -b a.raw -F raw far.qcow2
img rebase -b "$far" -F raw far.qcow2
shows_a far.qcow2
img_refused 'opens no connections.*--allow-uri' rebase -b a.raw -F raw far.qcow2
img rebase -b a.raw -F raw --allow-uri "$far" far.qcow2
shows_a far.qcow2
qemu-img create -q -f qcow2 -b "$PWD/a.raw" -F raw image.qcow2 4M
truncate -s +8M image.qcow2
PLUGIN=file start_nbdkit_as image -- image.qcow2
img rebase -b "$PWD/b.raw" -F raw "$uri"
stop_nbdkit image
qemu-img check -q image.qcow2
qemu-img compare -q -f qcow2 -F raw image.qcow2 a.raw

# --- only the name ---

# With snapshots, too.
qemu-img create -q -f qcow2 -b a.raw -F raw name.qcow2
qemu-io -f qcow2 -c 'write -P 5 1M 64k' name.qcow2 > io.log
qemu-img snapshot -c s name.qcow2
own=$(own_units name.qcow2)
img rebase -u -b ./a.raw -F raw name.qcow2
[ "$own" = "$(own_units name.qcow2)" ]
# One that does not exist.
for name in later.raw http://example.com/disk; do
  img rebase -u -b "$name" -F raw name.qcow2
  qemu-img info -f qcow2 name.qcow2 | grep -q "backing file: $name"
done
img rebase -u -b '' name.qcow2
if qemu-img info -f qcow2 name.qcow2 | grep backing; then fail "it has a backing file"; fi
qemu-io -f qcow2 -c 'read -P 0 0 1M' -c 'read -P 5 1M 64k' -c 'read -P 0 2M 2M' name.qcow2
check_clean name.qcow2
# An image that does not state the format.
qemu-img create -q -f qcow2 -b a.raw -F raw format.qcow2
"$python" - format.qcow2 <<'PY'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    h = f.read(65536)
    at = h.index(struct.pack(">I", 0xe2792aca))
    f.seek(at)
    f.write(struct.pack(">I", 0x12345678))
PY
img_refused 'does not say which format its backing file' rebase "${to_b[@]}" format.qcow2
img rebase -u -b a.raw -F raw format.qcow2
img rebase "${to_b[@]}" format.qcow2
check_rebased format.qcow2
