#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What tests/coverage-exceptions and tests/mutants-that-survive name is still in the
# sources, with a reason.  scripts/mutate finds places to break in each folder of core/ and in plugin/,
# by each of its rules, always the same ones.

set -e -u -o pipefail

here="$(cd "${srcdir:-$(dirname "$0")/..}" && pwd)"
top="$here/.."
command -v python3 >/dev/null || { echo "python3 is missing"; exit 77; }

"$top/scripts/mutate" --stale

tmp="$(mktemp -d "$PWD/known-breaks.XXXXXX")"
trap 'rm -rf "$tmp"' EXIT
"$top/scripts/mutate" --list 300 > "$tmp/list"
"$top/scripts/mutate" --list 300 | cmp - "$tmp/list"
[ "$(grep -c '^[a-z]*/[a-z0-9]*\.c:[0-9]*:' "$tmp/list")" = 300 ]
for folder in "$top"/core/*/ "$top/plugin/"; do
  grep -q "^$(basename "$folder")/" "$tmp/list"
done
for rule in no-lock no-unlock no-wakeup no-barrier no-call no-step not-set order \
            inverted equality error-ignored error-hidden boundary off-by-one and-or flag \
            arithmetic shift bits min-max loop-ends; do
  grep -q ":$rule\b" "$tmp/list" || { echo "no mutant of the rule $rule"; exit 1; }
done

# A mutant has its name's line, and differs from the source in nothing else.
name="$(sed -n '1s/ .*//p' "$tmp/list")"
"$top/scripts/mutate" --list --only "$name" > "$tmp/one"
[ "$(head -n 1 "$tmp/one")" = "$(head -n 1 "$tmp/list")" ]
