#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# doc/TRUST.md names, for each promise and each feature, tests that exist and that `make
# check' runs.  References to other files in README.md, HACKING and doc/ are correct.

set -e -u -o pipefail

here="$(cd "${srcdir:-$(dirname "$0")/..}" && pwd)"
top="$here/.."
trust="$top/doc/TRUST.md"

promises="$(sed -n '/^Promises$/,/^Served read-only$/p' "$trust")"
features="$(sed -n '/^Features$/,$p' "$trust")"
rows=0
while IFS= read -r row; do
  if [[ "$row" =~ ^\|\ [a-zA-Z] && "$row" != *"| tests |" ]]; then
    rows=$((rows + 1))
    # A row without a test would be an unproven claim.
    [[ "$row" =~ (unit|crash|fuzz|img|regressions|serve|project)/ ]] || { echo "no test: $row"; exit 1; }
  fi
done <<< "$promises
$features"
[ "$rows" -gt 55 ]

# names TEXT: the tests that it names.
names ()
{
  grep -oE '\b(unit|crash|fuzz|img|regressions|serve|project)/[a-z0-9/*-]+(\.(sh|c))?' <<< "$1" | sort -u
}
[ "$(names "$features" | wc -l)" -gt 40 ]

cd "$here"
set -f
for name in $(names "$(cat "$trust" "$top/lab/RESULTS")"); do
  set +f
  # shellcheck disable=SC2206
  files=($name)
  set -f
  [ -e "${files[0]}" ] || { echo "doc/TRUST.md or lab/RESULTS names $name, which is not there"; exit 1; }
  for file in "${files[@]}"; do
    case "$file" in
      *.sh|*.c) grep -qE "^	${file%.c}( |$)" Makefile.am || { echo "$file is not run"; exit 1; } ;;
    esac
  done
done
set +f

# Scripts and documents that are named are there, and in the archive of a release.
cd "$top"
for file in $(grep -ohE '\b(scripts|lab|doc)/[a-zA-Z.-]+[a-zA-Z]' README.md HACKING */README \
              doc/[A-Z]* | sort -u); do
  [ -e "$file" ] || { echo "$file is named, but is not there"; exit 1; }
done
for file in doc/*; do
  grep -q "^	$file " Makefile.am || { echo "$file is not in the archive"; exit 1; }
  grep -qE "\b$file\b" README.md || { echo "README.md does not name $file"; exit 1; }
done
[ "$(wc -l < README.md)" -le 200 ]
