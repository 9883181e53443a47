#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# scripts/matrix fetches SeaweedFS, a kernel, Ceph and what recipes need only if a test
# that is chosen uses them.  (Nothing is really fetched, built or run here.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"

mkdir -p "$tmp/top/scripts" "$tmp/bin"
cp "$srcdir"/../scripts/{matrix,common.sh} "$tmp/top/scripts"
ln -s "$srcdir" "$tmp/top/tests"
: > "$tmp/plugin.so"
cat >> "$tmp/top/scripts/common.sh" <<'END'
need_packages () { :; }
copy_sources () { mkdir -p "$1"; }
quietly () { :; }
need_engines () { echo "FETCHES engines"; }
need_guest () { echo "FETCHES guest"; }
make_chroot () { mkdir -p "$1"; }
inside ()
{
  case "$*" in
    *"apt-get -q update"*ceph-osd*) echo "FETCHES ceph" >&3 ;;
    *"apt-get -q update"*guestfish*) echo "FETCHES recipes" >&3 ;;
  esac
  # (No package is installed, and then all are.)
  [[ "$*" = *apt-get* ]]
}
END
printf '#!/bin/sh\necho 0\n' > "$tmp/bin/id"
chmod +x "$tmp/bin/id"

# fetches WHAT ARGUMENT...
fetches ()
{
  local what="$1"
  shift

  rm -rf "$tmp/top/build"
  PATH="$tmp/bin:$PATH" "$tmp/top/scripts/matrix" --plugin "$tmp/plugin.so" \
    --systems trixie "$@" 3> "$tmp/ceph" > "$tmp/out" 2>&1 || :
  cat "$tmp/out"
  grep -E '^0 passed|there are no such tests' "$tmp/out"
  [ "$(sed -n 's/^FETCHES //p' "$tmp/out" "$tmp/ceph" | tr '\n' ' ')" = "$what" ] ||
    fail "$*: does not fetch: $what"
}

fetches "engines guest ceph recipes "
fetches "" serve/list-exports.sh unit/space/alloc 'serve/b*'
fetches "engines ceph " serve/list-exports.sh engines/s3.sh
fetches "guest ceph recipes " 'recipes/*'
fetches "ceph " project/man-commands.sh
fetches "" --fast
