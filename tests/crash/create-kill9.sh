#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A server that is killed while it creates an image, just before any system call that
# writes, syncs or links, leaves either nothing or the whole image.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires strace -f -e trace=linkat -e inject=linkat:signal=KILL:when=1 true
mkdir "$tmp/dir"

judge ()
{
  local found
  found="$(ls -A "$tmp/dir")"
  case "$found" in
    '') nothing=$((nothing + 1)) ;;
    new.qcow2) whole=$((whole + 1)) ;;
    data.raw)
      # It gets its name first: killed in between, it is alone, and complete.
      [ "$1" = external ]
      [ "$(file_size "$tmp/dir/data.raw")" = 3145728 ] ;;
    "data.raw
new.qcow2") [ "$1" = external ]; whole=$((whole + 1)) ;;
    *) fail "left behind: $found" ;;
  esac
  if [ -e "$tmp/dir/new.qcow2" ]; then
    check_clean "$tmp/dir/new.qcow2"
    qemu-img info "$tmp/dir/new.qcow2" | grep -F '3145728 bytes'
    # None that is preallocated has lost its space.
    [ "$(file_size "$tmp/dir/new.qcow2")" = "$size" ]
  fi
  rm -f "$tmp/dir/"*
}

# try KIND PARAMETER...
try ()
{
  local kind="$1" call n status total=0 nothing=0 whole=0
  local -a make
  shift

  make=("$NBDKIT" -U - "$PLUGIN" "$tmp/dir/new.qcow2" create=3M "$@" --run :)
  "${make[@]}" || [ "$kind" = external ]
  size=$(file_size "$tmp/dir/new.qcow2")
  rm -f "$tmp/dir/"*
  for call in pwritev2 ftruncate fallocate fdatasync linkat fsync; do
    for ((n = 1; n < 100; ++n)); do
      status=0
      strace -f -qq -o /dev/null -e "trace=$call" \
        -e "inject=$call:signal=KILL:when=$n" "${make[@]}" 2>/dev/null || status=$?
      [ "$status" -ge 128 ] || break
      total=$((total + 1))
      judge "$kind"
    done
    [ "$n" -lt 100 ]
    # It went through.
    [ -e "$tmp/dir/new.qcow2" ]
    judge "$kind"
  done
  echo "$*: killed at $total places: $nothing times nothing, $whole times the image"
  [ "$total" -ge 4 ]
  [ "$nothing" -ge 3 ]
}

try plain
try plain preallocation=full cluster-size=512
try plain preallocation=falloc cluster-size=4K
try external data-file="$tmp/dir/data.raw" preallocation=full
