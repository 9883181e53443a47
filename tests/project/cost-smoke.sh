#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# lab/cost counts what a client causes: system calls as strace would, and no less for a
# plugin than its work needs.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires valgrind --version
requires objdump --version

export NBDKIT
cost ()
{
  "$srcdir/../lab/cost" --plugin "$PLUGIN" "$@"
}

cost --help | grep -e --requests > /dev/null || fail "no help"

cost --requests 1000 --threads 1 | tee "$tmp/table"
"$python" - "$tmp/table" <<'PY'
import re, sys

rows = {}
for line in open(sys.argv[1]):
    m = re.match(r"(\S.*?)  +(nbdkit file|plugin) +([\d. -]+)$", line)
    if m:
        rows[m.group(1), m.group(2)] = [float(n) for n in m.group(3).split()]
names = {name for name, _ in rows}
assert len(names) == 4 and len(rows) == 8, rows
for (name, server), (instructions, locked, calls, _) in rows.items():
    assert 500 < instructions < 100000, (name, server)
    assert 1 < locked < instructions / 20, (name, server)
    # At least: one to receive the request, one for the file, one to answer; two of each
    # where the request is a write and a flush.
    least = 6 if "flush" in name else 3
    assert least - 1 < calls < least + 6, (name, server, calls)
# What a flush costs is more than what the write before it costs.
assert (rows["rewrite 4K, and flush", "plugin"][0] >
        rows["rewrite 4K", "plugin"][0] * 1.2), rows
PY

for wrong in '--requests 0' '--threads 0' '--before' more; do
  # shellcheck disable=SC2086
  if cost $wrong; then fail "accepted: $wrong"; fi
done
