#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Links between the documents in Markdown lead to files, and to headings, that are there.

set -e -u -o pipefail

cd "${srcdir:-$(dirname "$0")/..}/.."

# anchors FILE: what a link can name after #, as GitHub makes it from the headings.
anchors ()
{
  awk '/^(---+|===+)$/ { print last } /^#+ / { sub (/^#+ /, ""); print } { last = $0 }' "$1" |
    tr '[:upper:] ' '[:lower:]-' | tr -cd '[:alnum:]\n_-'
}

links=0
for document in *.md doc/*.md; do
  while IFS= read -r link; do
    links=$((links + 1))
    case "$link" in *://*) continue ;; esac
    file="${link%%#*}"
    if [ -n "$file" ]; then file="$(dirname "$document")/$file"; else file="$document"; fi
    [ -e "$file" ] || { echo "$document: $link: no such file"; exit 1; }
    case "$link" in
      *#*) grep -qxF -- "${link#*#}" <(anchors "$file") ||
             { echo "$document: $link: no such heading"; exit 1; } ;;
    esac
  done < <(sed '/^    /d' "$document" | grep -oE '\]\([^)]+\)' | sed 's/^](//; s/)$//')
done
[ "$links" -ge 20 ]
