#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Each recipe of doc/RECIPES.md has a test.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"

diff <(awk '/^---/ { print last } { last = $0 }' "$srcdir/../doc/RECIPES.md" | sort) \
  <(sed -n 's/^recipe "\?\([^"]*\)"\?$/\1/p' "$srcdir"/recipes/*.sh | sort)
