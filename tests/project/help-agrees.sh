#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The parameters that the code accepts, those that --help lists, and those that
# the manual page describes are the same; and what the manual says about
# --dump-plugin and debug flags is what the plugin has.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires "$NBDKIT" --version

code="$srcdir/../plugin/nbd/plugin.c"
pod="$srcdir/../plugin/nbdkit-qcow2-plugin.pod"

# The code: the table of parameters.
tr -d '\n' < "$srcdir/../plugin/nbd/params.c" |
  grep -o '\[PARAM_[A-Z0-9_]*\] = *{ "[^"]*"' |
  sed 's/.*"\(.*\)"/\1/' | sort > "$tmp/code"

# --help: lines that begin with key= or [key=].
"$NBDKIT" "$PLUGIN" --help > "$tmp/help.txt"
sed -n 's/^\[\{0,1\}\([a-z0-9][-a-z0-9]*\)=.*/\1/p' "$tmp/help.txt" |
  sort -u > "$tmp/help"

# The manual: the items of the section PARAMETERS, B<key=> or [B<key=>].
sed -n '/^=head1 PARAMETERS/,/^=head1 [^P]/p' "$pod" |
  sed -n 's/^=item \[\{0,1\}B<\([a-z0-9][-a-z0-9]*\)=.*/\1/p' | sort -u > "$tmp/manual"

# Its SYNOPSIS: all words before an equals sign.
sed -n '/^=head1 SYNOPSIS/,/^=head1 DESCRIPTION/p' "$pod" |
  grep -oE '(\[file|[a-z0-9][-a-z0-9]*)\]?=' | tr -d '[]=' | sort -u > "$tmp/synopsis"

[ -s "$tmp/code" ]
[ "$(sort "$tmp/code" | uniq -d)" = "" ]
diff -u "$tmp/code" "$tmp/help"
diff -u "$tmp/code" "$tmp/manual"
diff -u "$tmp/code" "$tmp/synopsis"
for key in file l2-cache l2-slice; do grep -qx -- "$key" "$tmp/code"; done

# PARAMETERS is in alphabetical order.  (Of items that share their text, the first counts;
# those of an inner list, which have no key, do not.)
sed -n '/^=head1 PARAMETERS/,/^=head1 [^P]/p' "$pod" | awk '
  /^=item \[?B<[a-z0-9]/ { if (!shared) print; shared = 1; next }
  /^[^=]/ { shared = 0 }' |
  sed 's/^=item \[\{0,1\}B<\([^=]*\)=.*/\1/' > "$tmp/order"
[ "$(wc -l < "$tmp/order")" -gt 40 ]
sort -c "$tmp/order"

# What is not a parameter is refused, by name.
refused "no-such-key" file=/dev/null no-such-key=1

# The first word of the values that are listed with | is accepted by --help and the
# manual alike: a=b|c in --help is B<a=b> and B<a=c> in the manual.
sed -n 's/^\([a-z0-9][-a-z0-9]*\)=\([a-z0-9|]*\).*/\1 \2/p' "$tmp/help.txt" |
while read -r key values; do
  for value in ${values//|/ }; do
    grep -qF "B<$key=$value>" "$pod" || fail "the manual lacks $key=$value"
  done
done

# --dump-plugin: our own lines are all in the manual, and those in the manual
# are all there.
"$NBDKIT" "$PLUGIN" --dump-plugin > "$tmp/dump.txt"
sed -n 's/^\(qcow2_[a-z0-9_]*\)=.*/\1/p' "$tmp/dump.txt" | sort > "$tmp/dump"
grep -o 'C<qcow2_[a-z0-9_]*' "$pod" | sed 's/^C<//' | sort -u > "$tmp/dump.manual"
diff -u "$tmp/dump" "$tmp/dump.manual"
grep -qx 'magic_config_key=file' "$tmp/dump.txt"
version=$(sed -n 's/^version=//p' "$tmp/dump.txt")
grep -qx "#define PACKAGE_VERSION \"$version\"" "$abs_top_builddir/config.h"

# MESSAGES: what the manual quotes, in pieces between dots, the plugin can say.
strings -n 4 "$PLUGIN" > "$tmp/strings"
sed -n '/^=head1 MESSAGES/,/^=back/s/^=item C<\(.*\)>$/\1/p' "$pod" > "$tmp/messages"
[ "$(wc -l < "$tmp/messages")" -ge 5 ]
sed -E 's/"?\.\.\."?/\n/g' "$tmp/messages" | sed -E 's/^[:; ]+//; s/[: ]+$//' |
while IFS= read -r piece; do
  grep -qF -- "$piece" "$tmp/strings" || fail "the plugin does not say: $piece"
done

# Debug flags: those that the code exports are those that the manual names.
sed -n 's/.*int qcow2_debug_\([a-z0-9_]*\).*/\1/p' "$code" | sort -u > "$tmp/flags"
grep -o -- '-D qcow2\.[a-z0-9]*' "$pod" | sed 's/.*\.//' | sort -u > "$tmp/flags.manual"
diff -u "$tmp/flags" "$tmp/flags.manual"

# All of it in one place: nothing but what nbdkit looks for is visible.
nm -D --defined-only "$PLUGIN" | awk '{ print $3 }' | sort > "$tmp/visible"
{ echo plugin_init; sed 's/^/qcow2_debug_/' "$tmp/flags"; } | sort > "$tmp/wanted"
diff -u "$tmp/wanted" "$tmp/visible"
