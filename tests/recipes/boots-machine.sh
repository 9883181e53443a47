#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A virtual machine boots Debian's kernel from our disk, writes files, gives space back,
# and powers off; the image is clean.
#
# The disk is a small system of its own: syslinux, the kernel, and busybox.  Its kernel is
# in build/guest (scripts/test puts it there).  Takes 10 seconds of a processor.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
guest="$srcdir/../build/guest"
[ -e "$guest/lib" ] || skip "no kernel in build/guest: scripts/test puts it there"
for program in qemu-system-x86_64 syslinux mcopy cpio; do
  requires "$program" --version
done
requires mkfs.fat --help
requires sfdisk --version
requires debugfs -V
. "$srcdir/lib/recipes.sh"
rm "$tmp/bin/qemu-system-x86_64"        # the real one

modules="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci"
modules+=" virtio_blk"
root_start=$((41 << 20))

# make_initrd: mounts the second partition, and runs what is there.
make_initrd ()
{
  local library module

  mkdir -p initrd.d/{bin,dev,proc,root,lib}
  cp "$(command -v busybox)" initrd.d/bin/busybox
  for library in $(ldd "$(command -v busybox)" | grep -o '/[^ ]*'); do
    mkdir -p "initrd.d${library%/*}"
    cp "$library" "initrd.d$library"
  done
  for module in $modules; do
    find "$guest/lib" -name "$module.ko" -exec cp {} initrd.d/lib ';'
  done
  cat > initrd.d/init <<END
#!/bin/busybox sh
PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for m in $modules; do insmod /lib/\$m.ko; done
mount -t ext4 /dev/vda2 /root && sh /root/install
umount /root
poweroff -f
END
  chmod +x initrd.d/init
  (cd initrd.d && find . | cpio -o -H newc --quiet | gzip -1) > initrd
}

# make_root: the filesystem of the second partition.
make_root ()
{
  mkdir root.d
  head -c 1M /dev/zero | tr '\0' x > root.d/package
  cat > root.d/install <<'END'
cd /root
mkdir -p usr/bin
cp package usr/bin/program
rm package
uname -r > installed
sync
fstrim /root
END
  mke2fs -q -t ext4 -E "offset=$root_start" -d root.d machine.raw 40M
}

before ()
{
  truncate -s 96M machine.raw
  sfdisk -q machine.raw <<END
label: dos
start=1MiB, size=40MiB, type=c, bootable
start=41MiB, type=83
END
  dd if="$(find /usr/lib/syslinux /usr/lib/SYSLINUX -name mbr.bin | head -n 1)" \
    of=machine.raw conv=notrunc
  mkfs.fat --offset 2048 -F 16 machine.raw 40960
  syslinux --install --offset $((1 << 20)) machine.raw
  make_initrd
  # On a busy machine, an emulated timer can be late for the kernel's check of timers.
  printf '%s\n' 'serial 0' 'default guest' 'label guest' 'linux vmlinuz' 'initrd initrd' \
    'append console=ttyS0 quiet no_timer_check panic=-1' > syslinux.cfg
  mcopy -i "machine.raw@@1M" "$guest/vmlinuz" initrd syslinux.cfg ::
  make_root
  qemu-img convert -f raw -O qcow2 machine.raw disk.qcow2
}

after ()
{
  grep -a 'SYSLINUX' out
  grep -a 'Power down' out
  grep 'No errors were found' out
  check_clean disk.qcow2
  qemu-img convert -f qcow2 -O raw disk.qcow2 now.raw
  root="now.raw?offset=$root_start"
  [[ "$(debugfs -R 'cat installed' "$root")" = [5-9].*-cloud-amd64 ]]
  [ "$(debugfs -R 'cat usr/bin/program' "$root" | wc -c)" = 1048576 ]
}

recipe "A virtual machine"
