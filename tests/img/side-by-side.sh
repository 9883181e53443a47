#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# lab/side-by-side finds no difference between qemu-img and nbdkit-qcow2-img that is
# not explained, for images of some kind (in the long suite, of three), and doc/QEMU-IMG.md
# has a row for each command.
#
# Environment: SEED; KINDS: these kinds.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/random.sh"

requires_tools
requires qemu-io --version
script="$srcdir/../lab/side-by-side"
doc="$srcdir/../doc/QEMU-IMG.md"

# The kinds that the document has.
mapfile -t kinds < <(sed -n 's/^    [A-Z]  \([^ ]*\) .*/\1/p' "$doc")
[ ${#kinds[@]} -ge 13 ]
long_suite && n=3 || n=1
r=$RANDOM
KINDS="${KINDS:-$(printf '%s\n' "${kinds[@]}" | shuf -n "$n" --random-source=<(yes "$r") |
  paste -sd,)}"

"$script" --program="$abs_top_builddir/img/nbdkit-qcow2-img" --images="$KINDS" > "$tmp/table"
# (The marks of the kinds depend on which there are.)
commands ()
{
  sed -n '/^ *A\(  [B-Z]\)*$/,/=  the same/{ s/^ *//; s/  .*//; /^[a-z][a-z]/p }' "$1"
}
diff <(commands "$tmp/table") <(commands "$doc")
[ "$(commands "$doc" | wc -l)" -gt 50 ]
grep -q '^info IMG  *[=a]\(  [=a]\)*$' "$tmp/table"
