# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Debian packages.  Sourced by scripts/package.

dpkg_build ()
{
  cd "$1"
  dpkg-buildpackage -us -uc
}

# build_deb DIR: the packages, from the release archive.
build_deb ()
{
  local dir="$package_dir/$1" orig

  orig="$dir/${name}_$(version).orig.tar.gz"
  rm -rf "$dir"
  mkdir -p "$dir"
  cp "$archive" "$orig"
  tar -xf "$orig" -C "$dir"
  (logged "$1" dpkg_build "$dir/$name-$(version)")
  rm -rf "${dir:?}/$name-$(version)"
}

make_deb ()
{
  local changelog deb

  need_packages "${deb_packages[@]}"
  changelog=$(dpkg-parsechangelog -l "$top/debian/changelog" -S Version)
  [ "${changelog%-*}" = "$(version)" ] ||
    die "debian/changelog is about version ${changelog%-*}, configure.ac about $(version)"
  make_source
  say "building Debian packages"
  build_deb deb
  debs=()
  for deb in "$package_dir"/deb/*.deb; do
    [[ "$deb" = *-dbgsym_* ]] || debs+=("$deb")
  done
  printf '%s\n' "${debs[@]}"
}

# same_again: the same source gives the same packages, in another directory, later, and
# without tests.
same_again ()
{
  local deb

  say "building them again"
  DEB_BUILD_OPTIONS=nocheck build_deb again
  for deb in "${debs[@]}"; do
    cmp "$deb" "$package_dir/again/${deb##*/}" || die "${deb##*/} differs"
  done
}

# What these say is true, and no fault: the project has no address and no page of its own,
# the packages close no bug of Debian's, and debian/ is a part of the source.
lintian_knows=(
  bogus-mail-host
  bogus-mail-host-in-debian-changelog
  initial-upload-closes-no-bugs
  no-debian-changes
  no-homepage-field
)

ask_lintian ()
{
  need_packages lintian
  say "lintian"
  lintian --allow-root --pedantic --fail-on error,warning,pedantic \
    --suppress-tags "$(IFS=,; echo "${lintian_knows[*]}")" "$package_dir"/deb/*.changes
}

# install_deb: they work where only what they depend on is installed, and vanish.
install_deb ()
{
  local -a depends packages
  local deb

  say "installing them there"
  logged install apt_there update
  mapfile -t depends < <(apt_there -s install "${debs[@]}" | sed -n 's/^Inst \([^ ]*\) .*/\1/p' |
                         grep -v qcow2)
  [ ${#depends[@]} -gt 0 ] || die "apt-get does not say what they depend on"
  # (The commands that are tried use its clients.)
  logged install apt_there install "${depends[@]}" libnbd-bin
  files_there > "$package_dir/before"
  logged install apt_there install "${debs[@]}"
  try_commands
  say "removing them"
  mapfile -t packages < <(for deb in "${debs[@]}"; do dpkg-deb -f "$deb" Package; done)
  logged purge apt_there purge "${packages[@]}"
  nothing_left
}

# autopkgtest_deb: the packages' own tests, as Debian runs them.
autopkgtest_deb ()
{
  local tree="$package_dir/tree"

  say "autopkgtest"
  mkdir -p "$tree"
  git -C "$top" archive HEAD debian | tar -x -C "$tree"
  logged autopkgtest apt_there install autopkgtest
  logged autopkgtest there autopkgtest "${debs[@]}" "$tree" -- null
  rm -rf "$tree"
}
