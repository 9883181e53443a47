#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Programs in scripts/ and lab/ say what is wrong with their arguments, or what is missing,
# before they build for minutes.  In a tree that they may not write to, they say so.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# A tree in which nothing has run, and whose scripts neither install nor build.
mkdir "$tmp/top"
cp -r "$srcdir/../scripts" "$srcdir/../lab" "$tmp/top"
ln -s "$srcdir" "$srcdir/../plugin" "$tmp/top"
cat >> "$tmp/top/scripts/common.sh" <<'END'
need_packages () { :; }
build () { echo BUILDS; exit 99; }
END

# refuses STATUS TEXT SCRIPT ARGUMENT...
refuses ()
{
  local wanted="$1" text="$2" script="$3" status=0
  shift 3

  "$tmp/top/$script" "$@" < /dev/null > "$tmp/out" 2>&1 || status=$?
  cat "$tmp/out"
  [ "$status" = "$wanted" ] || fail "$script $*: status $status"
  grep -qF -- "$text" "$tmp/out" || fail "$script $*: no '$text'"
  # One line, and how it is used.
  [ "$(grep -vc '^usage:' "$tmp/out")" = 1 ] || fail "$script $*: says more"
}

refuses 1 "no coverage is known: run make coverage first" scripts/mutate
refuses 1 "no coverage is known: run make coverage first" scripts/mutate 5 unit/space
refuses 1 "no mutant's name begins with nowhere/" scripts/mutate --list --only nowhere/
refuses 1 "nothing has run yet: run make coverage first" scripts/coverage --report
refuses 1 "no such test: nowhere" scripts/coverage nowhere
refuses 1 "no case has 'nonsense' in its name" scripts/regressions nonsense
refuses 1 "no case has 'nonsense' in its name" scripts/regressions --list cve nonsense
refuses 2 "invalid float value: 'abc'" lab/soak abc
refuses 1 "--out: $tmp exists" lab/soak --out "$tmp"
refuses 2 "invalid int value: 'x'" lab/powercut --rounds x
refuses 1 "--work: $tmp exists" lab/powercut --work "$tmp"

# (Right ones would build.)
for right in 'scripts/regressions cve' 'scripts/coverage --missing' 'lab/soak 1' \
    lab/powercut; do
  # shellcheck disable=SC2086
  if "$tmp/top/"$right < /dev/null > "$tmp/out" 2>&1; then fail "$right: no error"; fi
  grep BUILDS "$tmp/out" || fail "$right: does not build"
done

# may_not_write PATH: that is what is said to somebody who may not.
may_not_write ()
{
  if "${other[@]}" "$tmp/top/scripts/quickstart" < /dev/null > "$tmp/out" 2>&1; then
    fail "builds there"
  fi
  cat "$tmp/out"
  grep -F "you may not write to $1, which belongs to " "$tmp/out"
  if grep -i denied "$tmp/out"; then fail "says more"; fi
}

sed -i '/^build () {/d' "$tmp/top/scripts/common.sh"
chmod a+rx "$tmp"
chmod a-w "$tmp/top"
other=()
[ "$(id -u)" != 0 ] || other=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if "${other[@]}" test -r "$tmp/top/scripts/common.sh"; then
  may_not_write "$tmp/top"
  chmod u+w "$tmp/top"
  mkdir "$tmp/top/build"
  chmod a-w "$tmp/top/build"
  may_not_write "$tmp/top/build"
fi
chmod -R u+w "$tmp/top"
