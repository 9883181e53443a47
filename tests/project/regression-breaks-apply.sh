#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Every case of tests/regressions cites its source, and names a break that can be applied
# to the sources.  doc/TRUST lists all cases, in the words of their tests.

set -e -u -o pipefail

here="$(cd "${srcdir:-$(dirname "$0")/..}" && pwd)"
top="$here/.."
corpus="$here/regressions"
command -v patch >/dev/null || { echo "skipped: patch is missing"; exit 77; }

# The list of the corpus as the script prints it.
listed="$("$top/scripts/regressions" --list)"
trusted="$(sed -n '/^Corpus of corruptions$/,/^Features$/p' "$top/doc/TRUST")"
while IFS= read -r line; do
  grep -qxF -- "$line" <<< "$trusted" || { echo "doc/TRUST does not say: $line"; exit 1; }
done <<< "$listed"

cases=0
for file in "$corpus"/*.c "$corpus"/*.sh; do
  cases=$((cases + 1))
  head -n 30 "$file" | grep -q 'https://' || { echo "$file cites nothing"; exit 1; }
  break="$(sed -n 's/^[ #*]* Broken: *//p' "$file")"
  [ -e "$corpus/broken/$break.patch" ] || { echo "$file: no break: $break"; exit 1; }
done
[ "$cases" -gt 40 ]

tmp="$(mktemp -d "$PWD/regressions.XXXXXX")"
trap 'rm -rf "$tmp"' EXIT
for file in "$corpus"/broken/*.patch; do
  name="$(basename "$file" .patch)"
  grep -q " Broken: $name\$" "$corpus"/*.c "$corpus"/*.sh ||
    { echo "no case uses $file"; exit 1; }
  # (Copies: the sources may be read-only.)
  while IFS= read -r source; do
    mkdir -p "$tmp/$(dirname "$source")"
    cp "$top/$source" "$tmp/$source"
  done < <(sed -n 's,^+++ b/\([^ 	]*\).*,\1,p' "$file")
  chmod -R u+w "$tmp"
  patch -s -p1 -d "$tmp" < "$file" || { echo "cannot be applied: $file"; exit 1; }
  rm -rf "${tmp:?}/core"
done
