#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Every case of tests/regressions cites its source, and names a break that can be made in
# the sources.  doc/TRUST.md lists all cases, in the words of their tests.

set -e -u -o pipefail

here="$(cd "${srcdir:-$(dirname "$0")/..}" && pwd)"
top="$here/.."
corpus="$here/regressions"
command -v python3 >/dev/null || { echo "skipped: python3 is missing"; exit 77; }

# The list of the corpus as the script prints it.
listed="$("$top/scripts/regressions" --list)"
trusted="$(sed -n '/^Corpus of corruptions$/,/^Features$/p' "$top/doc/TRUST.md")"
while IFS= read -r line; do
  grep -qxF -- "$line" <<< "$trusted" || { echo "doc/TRUST.md does not say: $line"; exit 1; }
done <<< "$listed"

cases=0
for file in "$corpus"/*.c "$corpus"/*.sh; do
  cases=$((cases + 1))
  head -n 30 "$file" | grep -q 'https://' || { echo "$file cites nothing"; exit 1; }
  break="$(sed -n 's/^[ #*]* Broken: *//p' "$file")"
  [ -e "$corpus/broken/$break.break" ] || { echo "$file: no break: $break"; exit 1; }
done
[ "$cases" -gt 40 ]

for file in "$corpus"/broken/*.break; do
  name="$(basename "$file" .break)"
  grep -q " Broken: $name\$" "$corpus"/*.c "$corpus"/*.sh ||
    { echo "no case uses $file"; exit 1; }
done
python3 -B "$top/scripts/breaks.d/break.py" "$top" "$corpus"/broken/*.break > /dev/null

# Edits go by function.  What is not there once is refused; space, comments, and where a
# string is split do not matter.
tmp="$(mktemp -d "$PWD/regressions.XXXXXX")"
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/core/space"
printf 'void\ng (void)\n{\n  say ("of g");\n}\n\nint\nf (int a)\n{\n%s\n}\n' \
  '  if (a  /* none */ ==
      0)
    say ("one "
         "two");
  again (again (0));' > "$tmp/core/space/x.c"

makes ()
{
  printf 'An edit.\n\n%s\n-%s\n+NEW\n' "$1" "$2" > "$tmp/break"
  python3 -B "$top/scripts/breaks.d/break.py" "$tmp" "$tmp/break" > "$tmp/patch"
}
makes f 'if (a == 0)'
makes f 'say ("one two");'
makes f 'int f'
for edit in 'f say ("of g");' 'f again' 'f ga' 'h if'; do
  if makes "${edit%% *}" "${edit#* }" 2> /dev/null; then echo "made: $edit"; exit 1; fi
done
