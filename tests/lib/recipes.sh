# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs the recipes of doc/RECIPES.md, as they are written.  To be sourced after functions.sh.
# A test defines what it needs of
#
#   before            prepares the files that the recipe begins with
#   before_command    is called with each command before it runs
#   after             judges the result
#
# and calls recipe TITLE.

requires_tools
requires nbdcopy --version
requires /usr/bin/python3 -c 'import nbd'
. "$srcdir/lib/ceph.sh"
. "$srcdir/lib/commands.sh"

before () { make_files; }
before_command () { :; }

# section_units FILE: as plain_units; the titles are those of sections.
section_units ()
{
  awk '
    /^---/ { print "= " last }
    /^    / { print substr ($0, 5) }
    { last = $0 }' "$1"
}

judge_recipe ()
{
  case "$1" in
    before) before ;;
    command) before_command "$3" ;;
    after) after ;;
  esac
}

recipe ()
{
  section_units "$srcdir/../doc/RECIPES.md" |
    awk -v title="= $1" '/^= / { inside = $0 == title } inside' > "$tmp/units"
  run_units judge_recipe < "$tmp/units"
  [ -z "$not_here" ] || skip "$not_here"
}
