#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A folder of core/ uses only the folders below it, the front ends plugin/ and img/ use all
# but not each other, and no two files call or include each other, not even indirectly.  The test checks the includes, which name
# their folder, and the calls between object files.

set -e -u -o pipefail

here="$(cd "${srcdir:-$(dirname "$0")/..}" && pwd)"
top="$(cd "$here/.." && pwd)"
objects="${abs_top_builddir:-$top}"

# Each folder and what lies directly below it, bottom up; what is below those counts too.
declare -A below=(
  [util]=""
  [storage]="util"
  [format]="util"
  [image]="storage format"
  [space]="image"
  [mapping]="space"
  [request]="mapping"
  [check]="mapping"
  [disk]="request check"
  [copy]="disk"
  [change]="copy"
  [plugin]="change"
  [img]="change"
)

# is_below LOW HIGH
is_below ()
{
  local f

  for f in ${below[$2]}; do
    if [ "$f" = "$1" ] || is_below "$1" "$f"; then return 0; fi
  done
  return 1
}

status=0
wrong ()
{
  echo "$*"
  status=1
}

# may_use USER USED WHAT
may_use ()
{
  if [ "$1" != "$2" ] && ! is_below "$2" "$1"; then
    wrong "$1/$3: $1 is not above $2"
  fi
}

for folder in "$top"/core/*/; do
  folder=$(basename "$folder")
  [[ -v "below[$folder]" ]] || wrong "$folder/: has no place: give it one here and in HACKING"
done

files=0
while IFS= read -r path; do
  files=$((files + 1))
  folder="${path%%/*}"
  name="${path#*/}"
  file="$top/core/$path" list=core
  if [[ "$folder" = plugin || "$folder" = img ]]; then
    file="$top/$path" list="$folder"
  elif [[ "$path" != */* ]]; then
    wrong "core/$path: is in no folder"
    continue
  fi
  # config.h and headers of the system are in angle brackets.
  while read -r included; do
    if [[ "$included" != */* ]] ||
       ! { [ -e "$top/core/$included" ] || [[ "$included" = @(plugin|img)/* && -e "$top/$included" ]]; }
    then
      wrong "$path: includes \"$included\", which is not FOLDER/NAME"
      continue
    fi
    may_use "$folder" "${included%%/*}" "$name includes $included"
    if [[ "$included" = *-impl.h && "${included%%/*}" != "$folder" ]]; then
      wrong "$path: includes $included, which is for its own folder only"
    fi
  done < <(sed -n 's/^#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' "$file")
  if [[ "$name" = *.c ]] &&
     ! grep '^#[[:space:]]*include' "$file" | head -n 1 | grep -q '<config\.h>'; then
    wrong "$path: the first include is not <config.h>"
  fi
  if ! grep -q "%reldir%/${path#"$list/"} " "$top/$list/sources.mk"; then
    wrong "$path: is not in $list/sources.mk"
  fi
  # Only plugin/ knows nbdkit.
  if [ "$list" != plugin ] && grep -Hn '#.*include.*nbdkit' "$file"; then
    wrong "$path: includes a header of nbdkit"
  fi
done < <(cd "$top/core" && find . -mindepth 1 -maxdepth 2 -name '*.[ch]' ! -path '*/.?*/*' |
           sed 's,^\./,,' | sort
         cd "$top" && find plugin img -maxdepth 1 -name '*.[ch]' | sort)
echo "$files files looked at"
[ "$files" -gt 100 ] || wrong "where are the sources?"

# no_circle WHAT: stdin is a list of USER USED.  Two files that need each other are one, or
# lack a third.
no_circle ()
{
  if ! tsort >/dev/null 2>"$circle"; then
    wrong "files that $1 each other: $(sed 's/^tsort: -\{0,1\}:* *//' "$circle" | tr '\n' ' ')"
  fi
}
circle="$(mktemp)"
trap 'rm -f "$circle"' EXIT

no_circle include < <(
  cd "$top/core" && grep -H '^#[[:space:]]*include[[:space:]]*"' ./*/*.h ../plugin/*.h ../img/*.h |
    sed 's,^\.*/,,; s/:#[[:space:]]*include[[:space:]]*"/ /; s/".*//')

# --- calls

command -v nm >/dev/null || { echo "skipped: nm is missing"; exit 77; }
# symbols OBJECT...: ROOM SYMBOL DEFINED|USED; a room is FOLDER/NAME without .c
symbols ()
{
  local o room

  for o in "$objects"/core/*/.libs/*.o "$@"; do
    room="${o#"$objects"/}"
    room="${room#core/}"
    room="${room/.libs\//}"
    room="${room/nbdkit_qcow2_plugin_la-/}"
    nm -P "$o" | awk -v room="${room%.o}" \
      '$2 == "U" { print room, $1, "used" } $2 ~ /^[A-TV-Z]$/ { print room, $1, "defined" }'
  done
}

# calls_with OBJECT...: of the core and a front end.  (remedy and report_line are what the core
# needs from it: util/remedy.h, util/report.h.)
calls_with ()
{
  symbols "$@" | awk '
    $2 == "remedy" || $2 == "report_line" || $2 == "report_traces" { next }
    $3 == "defined" { home[$2] = $1 }
    $3 == "used" { user[++n] = $1; what[n] = $2 }
    END { for (i = 1; i <= n; i++)
            if (what[i] in home && home[what[i]] != user[i])
              print user[i], home[what[i]], what[i] }'
}
calls=$({ calls_with "$objects"/plugin/.libs/*.o
          calls_with "$objects"/img/*.o; } | sort -u)
echo "$(wc -l <<< "$calls") calls looked at"
[ "$(wc -l <<< "$calls")" -gt 500 ] || wrong "where are the object files?"
while read -r user used symbol; do
  may_use "${user%%/*}" "${used%%/*}" "${user#*/}.c uses $symbol of $used.c"
done <<< "$calls"

no_circle call < <(awk '{ print $1, $2 }' <<< "$calls")

exit "$status"
