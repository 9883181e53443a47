#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# clang compiles the plugin, too, without warnings.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"

requires clang --version
if [ -e "$srcdir/../config.status" ]; then skip "the source tree is configured"; fi

cd "$tmp"
top="$srcdir/.."
"$top/configure" -q --enable-werror CC=clang CFLAGS=-O0
make -s SUBDIRS="core plugin img"
nbdkit_loads="$("$NBDKIT" "$PWD/plugin/.libs/nbdkit-qcow2-plugin.so" --dump-plugin)"
grep -x 'name=qcow2' <<< "$nbdkit_loads"
