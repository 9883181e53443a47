# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# RPM packages, as Fedora has them.  Sourced by scripts/package.
#
# They are built and tried on Debian, so libraries and nbdkit are Debian's, and what the
# packages need is installed under the names that it has there.

rpm_build ()
{
  local libdir

  # Where Debian's nbdkit looks, and what Fedora's package systemd-rpm-macros defines.
  libdir=$(pkg-config --variable=plugindir nbdkit | sed 's,/nbdkit/plugins$,,')
  rpmbuild -ta --nodeps "$archive" \
    --define "_libdir $libdir" \
    --define "_unitdir /usr/lib/systemd/system" \
    --define "_sysusersdir /usr/lib/sysusers.d" \
    --define "systemd_post() :" \
    --define "systemd_preun() :" \
    --define "systemd_postun() :" \
    --define "_topdir $1"
}

make_rpm ()
{
  local dir="$package_dir/rpm" rpm

  need_packages "${deb_packages[@]}" rpm
  make_source
  say "building RPM packages"
  rm -rf "$dir"
  logged rpm rpm_build "$dir/build"
  mv "$dir"/build/{RPMS/*,SRPMS}/*.rpm "$dir"
  rm -rf "$dir/build"
  rpms=()
  for rpm in "$dir"/*.rpm; do
    [[ "$rpm" = *-debug* || "$rpm" = *.src.rpm ]] || rpms+=("$rpm")
  done
  printf '%s\n' "${rpms[@]}"
}

ask_rpmlint ()
{
  need_packages rpmlint
  say "rpmlint"
  rpmlint -c "$package_d/rpmlint.toml" "${rpms[@]}" "$package_dir"/rpm/*.src.rpm
}

# rpm_there ARGUMENT...: Debian's rpm, on that system.  (It knows no package of Debian's.)
rpm_there ()
{
  rpm --root "$root" "$@"
}

# install_rpm: they work where what they need is installed, and vanish.
install_rpm ()
{
  local -a needed=(libdeflate0 libjansson4 libnbd-bin libssl3 nbdkit
                   systemd-standalone-sysusers)

  say "installing them there"
  logged install apt_there update
  logged install apt_there install "${needed[@]}"
  files_there > "$package_dir/before"
  logged install rpm_there --install --nodeps "${rpms[@]}"
  # (rpm 4.19, of Fedora 39, does this.)
  logged install there systemd-sysusers
  try_commands
  say "removing them"
  logged purge rpm_there --erase nbdkit-qcow2-tools nbdkit-qcow2-plugin
  nothing_left
}
