#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The version is in configure.ac.  All else takes it from there, or agrees with it: the
# plugin, the programs and their manual pages, the spec file, Debian's changelog, NEWS.
# Documents name no version of ours in commands.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires "$NBDKIT" --version
requires make --version
requires which pod2man

top="$srcdir/.."
version=$(sed -n 's/^AC_INIT(\[nbdkit-qcow2-plugin\], \[\(.*\)\])$/\1/p' "$top/configure.ac")
[[ "$version" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "configure.ac: version '$version'"

# agrees WHAT FOUND
agrees ()
{
  [ "$2" = "$version" ] || fail "$1 says version '$2', configure.ac $version"
}

agrees --dump-plugin "$("$NBDKIT" "$PLUGIN" --dump-plugin | sed -n 's/^version=//p')"
agrees --version "$("$NBDKIT" "$PLUGIN" --version | sed -n 's/^qcow2 //p')"
agrees debian/changelog \
  "$(sed -n '1s/^nbdkit-qcow2-plugin (\(.*\)-[0-9]*) .*/\1/p' "$top/debian/changelog")"
agrees "the spec file" \
  "$(sed -n 's/^Version: *//p' "$abs_top_builddir/nbdkit-qcow2-plugin.spec")"
agrees "the spec file's changelog" \
  "$(sed -n '/^%changelog/,$s/^\* .* - \(.*\)-[0-9]*$/\1/p' \
       "$abs_top_builddir/nbdkit-qcow2-plugin.spec" | head -n 1)"
agrees NEWS "$(sed -nE 's/^([0-9]+\.[0-9]+\.[0-9]+)( .*)?$/\1/p' "$top/NEWS" | head -n 1)"

unset MAKEFLAGS MFLAGS MAKELEVEL

# The programs and manual pages, as make makes them for "make install".
agrees nbdkit-qcow2-img \
  "$("$abs_top_builddir/img/nbdkit-qcow2-img" --version | sed -n 's/^nbdkit-qcow2-img //p')"
pages=0
for pod in "$top"/img/*.pod; do
  name="$(basename "$pod" .pod)"
  make -s -C "$abs_top_builddir/img" "$name.1"
  agrees "$name.1" "$(sed -n 's/^\.TH .*"nbdkit-qcow2-plugin \(.*\)" .*/\1/p' \
                        "$abs_top_builddir/img/$name.1")"
  pages=$((pages + 1))
done
[ "$pages" -ge 4 ]
make -s -C "$abs_top_builddir/plugin" nbdkit-qcow2-plugin.1
page="$abs_top_builddir/plugin/nbdkit-qcow2-plugin.1"
agrees "the manual" "$(sed -n 's/^\.TH .*"nbdkit-qcow2-plugin \(.*\)" .*/\1/p' "$page")"
agrees "the manual's VERSION" \
  "$(sed -nE 's/^This manual page describes .* ([0-9.]+)\. .*/\1/p' "$page")"

if grep -nE '(qcow2|plugin|tools)[-_][0-9]+\.[0-9]+\.[0-9]+' "$top/README.md" "$top"/doc/[A-Z]* \
    "$top"/img/*.pod "$top"/plugin/*.pod; then
  fail "a document names a version"
fi
