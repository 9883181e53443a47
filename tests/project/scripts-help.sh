#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The programs for developers in scripts/ and lab/ print their help, and nothing else of the
# file that contains it, and end with status 0.  Those that install packages say so.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"

count=0
for path in "$srcdir"/../{scripts,lab}/*; do
  name="$(basename "$path")"
  case "$name" in
    nbdkit-qcow2-*) continue ;;         # see commands-help-and-version.sh
    grow-device) continue ;;            # needs libnbd's module for Python
  esac
  if [ ! -f "$path" ] || [ ! -x "$path" ]; then continue; fi
  "$path" --help < /dev/null > "$tmp/help" || fail "$name --help: status $?"
  grep -q "$name" "$tmp/help" || fail "$name --help: no usage"
  if grep -E '^(shellcheck |-[A-Za-z]:|[a-z]+_[a-z_]+: )' "$tmp/help"; then
    fail "$name --help: has more than help"
  fi
  if grep -qE '^[^#]*(need_packages|build_release)' "$path"; then
    grep -q 'if you run it as root, it installs the packages' "$tmp/help" ||
      fail "$name --help: does not say that it installs packages"
  fi
  count=$((count + 1))
done
[ "$count" -ge 15 ]
