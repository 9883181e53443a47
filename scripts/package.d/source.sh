# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The release archive, and what is published with it.  Sourced by scripts/package.

make_archive ()
{
  cd "$1"
  # The same commit gives the same bytes: one date for all, in the order of names, no user.
  # (An archive has other modes if the umask is another one.)
  umask 022
  chmod -R u+rwX,go+rX,go-w .
  # By force: aclocal, which runs twice, otherwise compares times in whole seconds, and at
  # times leaves libtool's macros where they are.
  autoreconf -f -i
  ./configure -q
  TAR_OPTIONS="--sort=name --mtime=@$(commit_date) --owner=0 --group=0 --numeric-owner" \
    GZIP_ENV="-9 -n" make -s dist
}

commit_date ()
{
  git -C "$top" log -1 --format=%ct HEAD
}

# make_source [NAME]: from a clean checkout, so nothing else gets into it.  Its name is then
# in $archive.
make_source ()
{
  local tree="$package_dir/tree"

  need_packages "${build_packages[@]}"
  say "making the release archive"
  rm -rf "$tree"
  mkdir -p "$tree"
  git -C "$top" archive HEAD | tar -x -C "$tree"
  (logged source make_archive "$tree")
  archive="$package_dir/$name-$(version).tar.gz"
  mv "$tree/${archive##*/}" "$archive"
  rm -rf "$tree"
}

# make_release: what belongs to the archive.
make_release ()
{
  bill="${archive%.tar.gz}.spdx.json"
  sums="${archive%.tar.gz}.sha256"
  say "writing the bill of materials, and the sums"
  # Old signatures would be those of something else.
  rm -f "$archive.asc" "$sums.asc"
  python3 "$package_d/sbom.py" "$archive" "$name" "$(version)" "$(commit_date)" > "$bill"
  (cd "$package_dir" && sha256sum "${archive##*/}" "${bill##*/}" > "$sums")
  printf '%s\n' "$archive" "$bill" "$sums"
  [[ "$mode" = *--sign* ]] || say "not signed: no key was given (--sign KEY)"
}

# need_key KEY: before minutes are spent.
need_key ()
{
  command -v gpg > /dev/null || die "gpg is not installed"
  gpg --batch --list-secret-keys -- "$1" > /dev/null 2>&1 ||
    die "gpg has no secret key \"$1\""
}

# sign_release KEY: the sums are those of the archive and the bill.
sign_release ()
{
  local file

  say "signing"
  for file in "$archive" "$sums"; do
    gpg --quiet --batch --yes --armor --local-user "$1" --output "$file.asc" \
      --detach-sign -- "$file" || die "gpg did not sign"
    gpg --quiet --batch --verify "$file.asc" "$file" || die "the signature is wrong"
    echo "$file.asc"
  done
}

same_source_again ()
{
  local first="$package_dir/first.tar.gz"

  mv "$archive" "$first"
  make_source
  cmp "$first" "$archive" || die "another archive"
  rm "$first"
}
