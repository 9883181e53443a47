#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# No text of the core names a parameter of the plugin: users of a program do not know them
# (util/remedy.h).  The line that check= prints is about the parameter.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"

keys=$(sed -n 's/^ *\[PARAM_[A-Z0-9_]*\] = *{ "\([a-z0-9-]*\)".*/\1/p
  s/^ *{ "\([a-z0-9-]*\)", [A-Z]*(.*/\1/p' "$srcdir/../plugin/params.c" | sort -u)
[ "$(wc -w <<< "$keys")" -gt 40 ]
grep -qx backing-format <<< "$keys"
grep -qx snapshot-create <<< "$keys"

# In a string: KEY=, with no letter before it.
status=0
grep -rnE "\"([^\"]*[^a-z0-9-])?($(tr '\n' '|' <<< "$keys" | sed 's/|$//'))=" \
  "$srcdir/../core" --include="*.c" > "$tmp/found" || :
grep -vE '^[^:]*/check/checkreport\.c:.*check=%s' "$tmp/found" || status=$?
[ "$status" = 1 ] || fail "these texts name parameters"
