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

# All of them: is_below[LOW HIGH].
declare -A is_below=()
for high in "${!below[@]}"; do
  todo=("$high")
  while [ ${#todo[@]} -gt 0 ]; do
    for low in ${below[${todo[0]}]}; do
      is_below["$low $high"]=1
      todo+=("$low")
    done
    todo=("${todo[@]:1}")
  done
done

tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT

# The sources, as FOLDER/NAME; and PATH:INCLUDED, with quotes or brackets.
paths="$tmp/paths" includes="$tmp/includes"
{ (cd "$top/core" && find . -mindepth 1 -maxdepth 2 -name '*.[ch]' ! -path '*/.?*/*')
  (cd "$top" && find ./plugin ./img -maxdepth 1 -name '*.[ch]'); } |
  sed 's,^\./,,' | sort > "$paths"
(cd "$top/core" && sed 's,^\(plugin\|img\)/,../&,' "$paths" |
   xargs grep -H '^#[[:space:]]*include') |
  sed 's,^\.\./,,; s/:#[[:space:]]*include[[:space:]]*/:/' > "$includes"

status=0
wrong ()
{
  echo "$*"
  status=1
}

# may_use USER USED WHAT
may_use ()
{
  if [ "$1" != "$2" ] && [ -z "${is_below["$2 $1"]-}" ]; then
    wrong "$1/$3: $1 is not above $2"
  fi
}

for folder in "$top"/core/*/; do
  folder=$(basename "$folder")
  [[ -v "below[$folder]" ]] || wrong "$folder/: has no place: give it one here and in HACKING"
done

# Headers of nbdkit, which only plugin/ knows, and config.h are in angle brackets.
declare -A first=()
while IFS=: read -r path included; do
  folder="${path%%/*}"
  [[ -v "first[$path]" ]] || first[$path]="$included"
  if [[ "$included" = *nbdkit* && "$folder" != plugin ]]; then
    wrong "$path: includes a header of nbdkit"
  fi
  [[ "$included" = \"*\"* ]] || continue
  included="${included#\"}"
  included="${included%%\"*}"
  if [[ "$included" != */* ]] ||
     ! { [ -e "$top/core/$included" ] ||
         [[ "$included" = @(plugin|img)/* && -e "$top/$included" ]]; }; then
    wrong "$path: includes \"$included\", which is not FOLDER/NAME"
    continue
  fi
  may_use "$folder" "${included%%/*}" "${path#*/} includes $included"
  if [[ "$included" = *-impl.h && "${included%%/*}" != "$folder" ]]; then
    wrong "$path: includes $included, which is for its own folder only"
  fi
done < "$includes"

declare -A sources=()
files=0
while IFS= read -r path; do
  files=$((files + 1))
  case "$path" in
    plugin/*|img/*) list="${path%%/*}" ;;
    */*) list=core ;;
    *) wrong "core/$path: is in no folder"; continue ;;
  esac
  [[ -v "sources[$list]" ]] || sources[$list]="$(<"$top/$list/sources.mk")"
  [[ "${sources[$list]}" = *"%reldir%/${path#"$list/"} "* ]] ||
    wrong "$path: is not in $list/sources.mk"
  [[ "$path" != *.c || "${first[$path]-}" = '<config.h>'* ]] ||
    wrong "$path: the first include is not <config.h>"
done < "$paths"
echo "$files files looked at"
[ "$files" -gt 100 ] || wrong "where are the sources?"

# no_circle WHAT: stdin is a list of USER USED.  Two files that need each other are one, or
# lack a third.
no_circle ()
{
  if ! tsort >/dev/null 2>"$tmp/circle"; then
    wrong "files that $1 each other:" \
          "$(sed 's/^tsort: -\{0,1\}:* *//' "$tmp/circle" | tr '\n' ' ')"
  fi
}
no_circle include < <(sed -n 's/^\(.*\.h\):"\([^"]*\)".*/\1 \2/p' "$includes")

# --- calls

command -v nm >/dev/null || { echo "skipped: nm is missing"; exit 77; }
# symbols OBJECT...: ROOM SYMBOL DEFINED|USED; a room is FOLDER/NAME without .c
symbols ()
{
  nm -P -A "$objects"/core/*/.libs/*.o "$@" | awk -v top="$objects/" '
    {
      room = substr($1, length(top) + 1)
      sub(/\.o:$/, "", room)
      sub(/^core\//, "", room)
      sub(/\.libs\//, "", room)
      sub(/nbdkit_qcow2_plugin_la-/, "", room)
    }
    $3 == "U" { print room, $2, "used" }
    $3 ~ /^[A-TV-Z]$/ { print room, $2, "defined" }'
}

# calls_with OBJECT...: of the core and a front end.  (remedy and report_* are what the core
# needs from it: util/remedy.h, util/report.h.)
calls_with ()
{
  symbols "$@" | awk '
    $2 == "remedy" || $2 == "report_line" || $2 == "report_traces" || $2 == "report_log" \
      { next }
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
