#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# mkosi builds a disk with Debian 12, which is compressed, compared and validated.
#
# Downloads 80 MB.  Takes half a minute of a processor, most of it mkosi's.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires mkosi --version
requires debootstrap --version
[[ "$(mkosi --version)" =~ ^mkosi\ 1[0-4]$ ]] || skip "this mkosi has other formats"
[ "$(id -u)" = 0 ] || skip "mkosi has to run as root"
requires losetup --find
requires curl -fsI http://deb.debian.org/debian/dists/bookworm/InRelease
requires_namespace
. "$srcdir/lib/recipes.sh"

# systemd-nspawn, which mkosi uses, wants a /run in memory, and a system bus unless it may
# stay in this unit.  (Where systemd has booted, both are there.)
mkosi=$(command -v mkosi)
cat > "$tmp/bin/mkosi" <<END
#!/bin/bash
exec '$mkosi' --nspawn-keep-unit --workspace-dir "\$PWD/work" "\$@"
END
chmod +x "$tmp/bin/mkosi"
if [ "$(stat -f -c %T /run)" != tmpfs ]; then mount -t tmpfs run /run; fi

before ()
{
  mkdir work
}

after ()
{
  local start

  sfdisk -l disk.raw | grep 'Disklabel type: gpt'
  check_clean small.qcow2
  same small.qcow2 disk.raw
  qemu-img info small.qcow2 | grep 'compression type: zstd'
  # All of it is compressed, to less than half.
  [ $(($(file_size small.qcow2) * 2)) -lt $(($(stat -c %b disk.raw) * 512)) ]
  grep 'Images are identical' out
  grep 'ok .*filesystem of partition 1' out
  start=$(sfdisk -q -l -o START disk.raw | tail -n 1)
  qemu-img convert -f qcow2 -O raw small.qcow2 now.raw
  debugfs -R 'cat etc/debian_version' "now.raw?offset=$((start * 512))" | grep -x '12\..*'
}

recipe "Images that mkosi builds"
