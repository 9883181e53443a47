# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A container image, without a registry: buildah follows Containerfile, over a system that
# mmdebstrap makes.  Sourced by scripts/package.

image=nbdkit-qcow2
containers="$package_dir/containers"

# buildah_here COMMAND ARGUMENT...: with images of its own.
buildah_here ()
{
  buildah --root "$containers/root" --runroot "$containers/run" --storage-driver vfs "$@"
}

# base_image BASE: what debian:13-slim is.
base_image ()
{
  local container

  mmdebstrap --variant=minbase --include=ca-certificates \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    trixie "$containers/base.tar"
  container=$(buildah_here from scratch)
  buildah_here add --quiet "$container" "$containers/base.tar" /
  rm "$containers/base.tar"
  buildah_here commit --quiet --rm "$container" "$1"
}

# build_image: from the last commit.
build_image ()
{
  mkdir "$containers/context"
  git -C "$top" archive HEAD | tar -x -C "$containers/context"
  buildah_here build --isolation chroot --build-arg BASE="$base" \
    --build-arg VERSION="$(version)" --tag "$image" "$containers/context"
}

make_container ()
{
  local base="localhost/debian:13-slim" dir="$package_dir/container"

  [ "$(id -u)" = 0 ] || die "run this as root: it mounts, and calls chroot"
  need_packages buildah mmdebstrap
  rm -rf "$containers" "$dir"
  mkdir -p "$containers" "$dir"
  say "making a system for the image"
  logged base base_image "$base"
  say "building the image"
  logged container build_image
  buildah_here push --quiet "$image" "docker-archive:$dir/$image.tar:$image:$(version)"
  gzip -n "$dir/$image.tar"
  echo "$dir/$image.tar.gz: $(du -h "$dir/$image.tar.gz" | cut -f 1)," \
    "unpacked $(buildah_here images --format '{{.Size}}' "$image")"
}

# try_container: as its user, it works as the programs do that are installed, and runs the
# jobs of doc/CI.md.
try_container ()
{
  local container
  local -a entry in_container

  say "trying the image"
  container=$(buildah_here from --pull-never "$image")
  mapfile -t entry < <(buildah_here inspect \
    --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' "$container" |
    sed '/^$/d')
  in_container=(buildah_here run --isolation chroot)
  [ "$("${in_container[@]}" "$container" id -un)" = nbdkit-qcow2 ] || die "it runs as root"
  "${in_container[@]}" "$container" "${entry[@]}" qcow2 --version | grep -x "qcow2 $(version)"
  "${in_container[@]}" "$container" "${entry[@]}" nbdkit-qcow2-img --version
  # (Older ones abort when a client vanishes.)
  "${in_container[@]}" "$container" nbdkit --version |
    awk '{ split ($2, v, "."); exit !(v[1] > 1 || v[2] >= 34) }' || die "its nbdkit is too old"
  # shellcheck disable=SC2016
  logged commands "${in_container[@]}" --volume "$top/debian/tests:/try:ro" "$container" \
    sh -c 'mkdir /tmp/try && AUTOPKGTEST_TMP=/tmp/try exec /try/commands'

  say "running the jobs of doc/CI.md in it"
  need_packages python3 python3-libnbd python3-yaml qemu-utils libnbd-bin
  mkdir "$containers/jobs"
  cat > "$containers/validate" <<END
#!/bin/sh
exec buildah --root "$containers/root" --runroot "$containers/run" --storage-driver vfs \\
  run --isolation chroot --volume "$containers/jobs:$containers/jobs" \\
  --workingdir "\$PWD" "$container" nbdkit-qcow2-validate "\$@"
END
  chmod +x "$containers/validate"
  # (Everybody may write there, as in GitLab's jobs.)
  (
    umask 0
    cd "$containers/jobs"
    SYSTEMS="github gitlab" VALIDATE="$containers/validate" \
      logged jobs bash "$top/tests/project/validate-jobs.sh"
  )
  buildah_here rm "$container" > /dev/null
}
