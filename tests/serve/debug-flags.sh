#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# -D qcow2.alloc=1, .cache=1, .change=1 and .checkpoint=1 tell why, each its own part.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

# served ARG...: serves a disk that is made larger, written, trimmed and read.
served ()
{
  make_image "$tmp/a.qcow2" 64M
  start_nbdkit "$@" -- file="$tmp/a.qcow2" resize=96M
  nbdsh_run -c 'h.pwrite(b"x" * (1 << 20), 80 << 20); h.flush()' \
            -c 'h.trim(1 << 19, 80 << 20); h.flush()' \
            -c 'h.pread(4096, 0)'
  stop_nbdkit > "$tmp/out"
  check_clean "$tmp/a.qcow2"
}

# told WHAT LINE...
told ()
{
  local line what="$1"

  shift
  for line; do
    grep -q -- "$what.*$line" "$tmp/out" || fail "$what: does not tell: $line"
  done
}

# (Named by $flag.)
# shellcheck disable=SC2034
{
  alloc=('added to the reserve' 'taken from the reserve' 'for data' 'for an L2 table'
         'freed: reuse deferred' 'in no use' 'free, with a hole' 'given back')
  cache=('missed' 'loaded' 'to be edited')
  change=('gate is closed' 'at rest' 'switched' 'published' 'gate is open'
          'after [0-9]* ms')
  checkpoint=('begins: a flush' 'slices and' 'counts are written' 'pointers are durable'
              'ends')
}

for flag in alloc cache change checkpoint; do
  declare -n lines=$flag
  served -v -D "qcow2.$flag=1"
  told "$flag" "${lines[@]}"
  for other in alloc: cache: change: 'checkpoint [0-9]*:'; do
    case $other in
      $flag*) ;;
      *) ! grep -q "a.qcow2: $other\|debug: $other" "$tmp/out" || fail "also tells $other" ;;
    esac
  done
done

# A checkpoint: what it begins with, it ends with.
begun=$(grep -c 'checkpoint [0-9]*: begins' "$tmp/out")
[ "$begun" -gt 2 ]
[ "$begun" -eq "$(grep -c 'checkpoint [0-9]*: ends' "$tmp/out")" ]

# Not without.
served -v
if grep -E 'a.qcow2: (alloc|change|checkpoint [0-9]*):|cache: space' "$tmp/out"; then
  fail "tells without being asked"
fi
