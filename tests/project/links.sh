#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Links between the documents in Markdown lead to files, and to headings, that are there;
# and links between the manual pages to sections of them.

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

# L<PAGE(N)/SECTION> and L</SECTION>.
links=0
for pod in plugin/*.pod img/*.pod; do
  while IFS= read -r link; do
    links=$((links + 1))
    page="${link%%/*}" section="${link#*/}"
    for file in {plugin,img}/"${page%(*}".pod; do [ ! -e "$file" ] || break; done
    if [ -z "$page" ]; then file="$pod"; fi
    [ -e "$file" ] || continue          # of others
    grep -qxF -e "=head1 $section" -e "=head2 $section" -e "=item $section" "$file" ||
      { echo "$pod: $link: no such section"; exit 1; }
  done < <(tr '\n' ' ' < "$pod" | grep -oE 'L<[^|<>]*/[^<>]+>' | sed 's/^L<//; s/>$//')
done
[ "$links" -ge 50 ]
