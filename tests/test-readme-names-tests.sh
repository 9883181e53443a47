#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Each test that README's table of features names exists and is run by `make check'.

set -e -u -o pipefail

here="$(cd "${srcdir:-$(dirname "$0")}" && pwd)"
readme="$here/../README"
table="$(sed -n '/^What it can do/,/^How much cache/p' "$readme")"
names=$(grep -oE '\b(test|fuzz)-[a-z0-9*-]+(\.(sh|c))?' <<< "$table" | sort -u)
[ "$(wc -w <<< "$names")" -gt 40 ]

# A row without a test would be an unproven claim.
while IFS= read -r row; do
  if [[ "$row" =~ ^\ {4,8}[a-z] && "$row" != *test-* && "$row" != *"clusters of 512 bytes"* ]]; then
    echo "no test: $row"
    exit 1
  fi
done <<< "$table"

cd "$here"
set -f
for name in $names; do
  set +f
  # shellcheck disable=SC2206
  files=($name)
  set -f
  [ -e "${files[0]}" ] || { echo "README names $name, which is not there"; exit 1; }
  for file in "${files[@]}"; do
    case "$file" in
      *.sh|*.c) grep -qE "^	${file%.c}( |$)" Makefile.am || { echo "$file is not run"; exit 1; } ;;
    esac
  done
done
