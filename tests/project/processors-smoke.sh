#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# lab/processors, with times too short for meaningful results: all rows are there, for
# each number of threads, and all figures.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"

processors ()
{
  "$srcdir/../lab/processors" --program "$abs_top_builddir/tests/bench/processors" "$@"
}

processors --help | grep -e --threads > /dev/null || fail "no help"

processors --threads 1,3 --rounds 2 --seconds 0.01 --size 1 | tee "$tmp/table"
for row in 'read' 'rewrite' 'read and rewrite' 'read one slice' 'rewrite one slice' \
    'read with I/O' 'rewrite with I/O'; do
  for threads in 1 3; do
    grep -Eq "^$row +$threads( +[0-9]+[.][0-9]+){2} +[1-9][0-9]* +[0-9.]+ +[0-9]+\$" "$tmp/table" ||
      fail "no figures for: $row, $threads threads"
  done
done
[ "$(grep -c '[.]' "$tmp/table")" = 14 ] || fail "there are other rows"

processors --threads 2 --rounds 2 --seconds 0.01 --size 1 --rows '^rewrite$' | tee "$tmp/table"
[ "$(grep -c '^rewrite  ' "$tmp/table")" = 1 ] || fail "the row is not there"
[ "$(grep -c '[.]' "$tmp/table")" = 1 ] || fail "there are rows that were not asked for"

for wrong in '--threads 0' '--threads 1,' '--threads 2x' '--rounds 0' '--seconds 0' '--size 0' more; do
  # shellcheck disable=SC2086
  if processors $wrong; then fail "accepted: $wrong"; fi
done
