#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# clang compiles the plugin, too, without warnings.  (The short suite has it look at the
# sources only.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"

requires clang --version
top="$srcdir/.."

# clang looks at the sources in DIR, with the flags of its Makefile.
look ()
{
  local -a flags

  read -ra flags < <(env -u MAKEFLAGS make -s -C "$abs_top_builddir/$1" --eval='flags: ; @echo \
    $(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS) \
    $(or $(nbdkit_qcow2_plugin_la_CFLAGS),$(AM_CFLAGS)) $(CFLAGS)' flags)
  cd "$abs_top_builddir/$1"
  find "$top/$1" -name '*.c' -print0 |
    xargs -0 -n 20 clang -fsyntax-only -Werror "${flags[@]}"
}

if ! long_suite; then
  for dir in core plugin img; do look "$dir"; done
  exit
fi
if [ -e "$top/config.status" ]; then skip "the source tree is configured"; fi
cd "$tmp"
"$top/configure" -q --enable-werror CC=clang CFLAGS=-O0
make -s SUBDIRS="core plugin img"
nbdkit_loads="$("$NBDKIT" "$PWD/plugin/.libs/nbdkit-qcow2-plugin.so" --dump-plugin)"
grep -x 'name=qcow2' <<< "$nbdkit_loads"
