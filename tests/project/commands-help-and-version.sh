#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The program for users has --help and --version.  If nobody reads what it prints, it says
# nothing about that, and its status is that of SIGPIPE.
# A link to nbdkit-qcow2-img that is called like one of its commands goes by its own name.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires /usr/bin/python3 --version

program="$abs_top_builddir/img/nbdkit-qcow2-img"
"$program" --version | grep -x 'nbdkit-qcow2-img [0-9].*'
"$program" --help | grep '^usage: nbdkit-qcow2-img '
/usr/bin/python3 - "$program" <<'PY'
import os, subprocess, sys
for option in ("--help", "--version"):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.argv[1], option], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    print(option, done)
    assert done.stderr == b"" and done.returncode == -13, (option, done)
PY

for command in advise-cache apply-changes validate; do
  name="nbdkit-qcow2-$command"
  ln -s "$program" "$tmp/$name"
  "$tmp/$name" --version | grep -x "$name [0-9].*"
  "$tmp/$name" --help | grep "^usage: $name \[OPTION...\] [A-Z]"
  if "$tmp/$name" 2> "$tmp/err"; then fail "no operand is enough"; fi
  grep "^$name: " "$tmp/err"
done
