#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# guestfish changes a file on our disk, and makes a filesystem on a new one.
#
# It boots a small machine, which supermin makes of the packages that are installed here
# and a kernel: that in build/guest (scripts/test puts it there), or one in /boot.  The
# machine is emulated, because QEMU aborts where /dev/kvm exists but does not work.  Takes
# half a minute of a processor.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires guestfish --version
requires sfdisk --version
requires debugfs -V
guest="$(realpath -m "$srcdir/../build/guest")"
if [ -e "$guest/lib" ]; then
  export SUPERMIN_KERNEL="$guest/vmlinuz"
  SUPERMIN_KERNEL_VERSION=$(ls "$guest/lib/modules")
  SUPERMIN_MODULES="$guest/lib/modules/$SUPERMIN_KERNEL_VERSION"
  export SUPERMIN_KERNEL_VERSION SUPERMIN_MODULES
  [ -e "$SUPERMIN_MODULES/modules.dep" ] || skip "no depmod when build/guest was made"
else
  [ -n "$(find /boot -name 'vmlinuz-*' -readable)" ] ||
    skip "no kernel in build/guest or /boot: scripts/test puts it there"
fi
[ -e /lib/modules ] || skip "no /lib/modules, which supermin wants: scripts/test makes it"
. "$srcdir/lib/recipes.sh"
mkdir "$tmp/appliance"
export LIBGUESTFS_BACKEND=direct LIBGUESTFS_BACKEND_SETTINGS=force_tcg
export LIBGUESTFS_CACHEDIR="$tmp/appliance"

before ()
{
  truncate -s 64M machine.raw
  echo 'start=1MiB, type=83' | sfdisk -q machine.raw
  mke2fs -q -t ext4 -E offset=$((1 << 20)) machine.raw 60M
  qemu-img convert -f raw -O qcow2 machine.raw disk.qcow2
}

# contains IMAGE FILE TEXT: has the filesystem, 1 MiB or 64 sectors after the beginning of
# the disk, this file?
contains ()
{
  local start

  check_clean "$1"
  qemu-img convert -f qcow2 -O raw "$1" now.raw
  start=$(sfdisk -q -l -o START now.raw | tail -n 1)
  e2fsck -f -n "now.raw?offset=$((start * 512))"
  [ "$(debugfs -R "cat $2" "now.raw?offset=$((start * 512))")" = "$3" ]
}

after ()
{
  [ "$(grep -c '^from guestfish$' out)" = 1 ]
  contains disk.qcow2 hello 'from guestfish'
  grep -x '1073741824' out
  contains new.qcow2 greeting/hello 'on a new disk'
}

# (libguestfs 1.60 has this problem with QEMU 11.1, with any disk.)
eval "really_$(declare -f fail)"
fail ()
{
  if [ -f "/proc/$$/fd/2" ] &&
     grep -aqs '[l]ibguestfs: error: .* did not understand QMP' "/proc/$$/fd/2"; then
    skip "this guestfish does not understand this QEMU"
  fi
  really_fail "$@"
}

recipe "Files in an image, with guestfish"
