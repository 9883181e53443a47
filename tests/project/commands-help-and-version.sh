#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# All programs for users have --help and --version, which need no libnbd.  If nobody reads
# what they print, they say nothing about that, and their status is that of SIGPIPE.
# A link to nbdkit-qcow2-img that is called like one of its commands goes by its own name.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires /usr/bin/python3 --version

scripts="$srcdir/../scripts"
for path in "$scripts"/nbdkit-qcow2-*; do
  name="$(basename "$path")"
  [ "$("$path" --version)" = "$name from the source" ] || fail "$name --version"
  "$path" --help > "$tmp/help"
  grep -q "usage: $name" "$tmp/help" || fail "$name --help"
  /usr/bin/python3 - "$path" <<'PY'
import os, subprocess, sys
for option in ("--help", "--version"):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.argv[1], option], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    print(option, done)
    assert done.stderr == b"" and done.returncode in (-13, 128 + 13), (option, done)
PY
done

for command in advise-cache apply-changes validate; do
  name="nbdkit-qcow2-$command"
  ln -s "$abs_top_builddir/img/nbdkit-qcow2-img" "$tmp/$name"
  "$tmp/$name" --version | grep -x "$name [0-9].*"
  "$tmp/$name" --help | grep "^usage: $name \[OPTION...\] [A-Z]"
  if "$tmp/$name" 2> "$tmp/err"; then fail "no operand is enough"; fi
  grep "^$name: " "$tmp/err"
done
