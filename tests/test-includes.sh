#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Rooms may use what lies below them, and what lies to the left on their own
# level: never what lies above or to the right.  The levels are those of HACKING.

set -e -u -o pipefail

plugin="${srcdir:-$(dirname "$0")}/../plugin"

levels=(
  "bytes cleanup format preallocation printable report run utf8"
  "sparse grace inflight hostlock dropcache hostfile hostopen hostspace newfile header headerwrite newimage overlap compress
   crypt luks luksmake entry pack freeset dirtyset fresh reportfile findings names"
  "map mapmem mapedit health refblock refcount refgrow refwrite prealloc
   payload inflate inflated deflater alloc allocidle quarantine allocpack vacant l2 l2write layers resolve
   snapshot
   shadow shadowtab shadowend bitmapdir census repair scan scantables
   scanextra scanrefs scandata checkpoint bitmap bitmapext bitmapedit bitmapsize backlink"
  "view request write cow deflated datafile erase fill"
  "chain create checkreport check disk writable serve exports parts startup dir flatten snapedit resize edit"
  "paramvalue progress createparams params paramrules prepare stats qcow2"
)

# A room's place: rooms of lower levels, and to the left, have lower numbers.
declare -A place=()
n=0
for level in "${levels[@]}"; do
  for room in $level; do
    place[$room]=$((++n))
  done
done

status=0
wrong ()
{
  echo "$*"
  status=1
}

files=0
for file in "$plugin"/*.[ch]; do
  name="${file##*/}"
  room="${name%.?}"
  room="${room%-impl}"  # what the files of one room share
  files=$((files + 1))
  if [ -z "${place[$room]:-}" ]; then
    wrong "$name: this room has no level: give it one here and in HACKING"
    continue
  fi
  # config.h and headers of the system are in angle brackets.
  while read -r included; do
    other="${included%.h}"
    other="${other%-impl}"
    if [ ! -e "$plugin/$included" ]; then
      wrong "$name: includes \"$included\", which is not in plugin/"
    elif [ "$other" = "$room" ]; then
      :
    elif [ "${place[$other]:-0}" -ge "${place[$room]}" ]; then
      wrong "$name: includes $included, which is above it or to its right"
    fi
  done < <(sed -n 's/^#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' "$file")
  if [ "$name" = "$room.c" ] &&
     ! grep '^#[[:space:]]*include' "$file" | head -n 1 | grep -q '<config\.h>'; then
    wrong "$name: the first include is not <config.h>"
  fi
  # Only the front door (level 5) knows nbdkit; everything else is the core, in its list.
  case " ${levels[-1]} " in *" $room "*) continue ;; esac
  if grep -Hn '#.*include.*nbdkit' "$file"; then
    wrong "$name: includes a header of nbdkit"
  fi
  if ! grep -q "%reldir%/$name " "$plugin/core-sources.mk"; then
    wrong "$name: is not in core-sources.mk"
  fi
done

for room in "${!place[@]}"; do
  if [ ! -e "$plugin/$room.c" ] && [ ! -e "$plugin/$room.h" ]; then
    wrong "$room: has a level but no file"
  fi
done

echo "$files files looked at"
[ "$files" -gt 0 ] || exit 1
exit "$status"
