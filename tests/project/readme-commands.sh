#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Each command of README.md, doc/INSTALL.md and doc/PERFORMANCE.md, word for word, does
# what the text says.  Above all: after an incremental backup the overlay has the contents
# of the disk.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version
requires busybox httpd --help
. "$srcdir/lib/ceph.sh"
. "$srcdir/lib/commands.sh"
in_network_namespace

reason="installs packages; see project/quickstart.sh"
not_run 'scripts/quickstart' "$reason"
not_run 'make -C build/release uninstall' "nothing is installed here"
reason="scripts/test builds and tests, with --dist also installs"
for command in 'autoreconf -i' ./configure make 'make check' 'make install'; do
  not_run "$command" "$reason"
done
not_run 'scripts/test' "$reason"
not_run 'scripts/other-machines' "makes chroots, builds and tests in them"
reason="makes and installs packages; see scripts/package"
for command in 'scripts/package deb' 'scripts/package container' 'scripts/package source' \
    'scripts/package source --sign me@example.com' \
    'gpg --verify nbdkit-qcow2-plugin-*.sha256.asc' \
    'sha256sum -c nbdkit-qcow2-plugin-*.sha256' \
    'apt-get install ./build/package/deb/nbdkit-plugin-qcow2_*.deb' \
    'apt-get install ./build/package/deb/nbdkit-qcow2-tools_*.deb' \
    'dnf builddep nbdkit-qcow2-plugin.spec' \
    'rpmbuild -ta nbdkit-qcow2-plugin-*.tar.gz' 'podman build -t nbdkit-qcow2 .'; do
  not_run "$command" "$reason"
done
podman='podman run --rm -v ./images:/images'
for command in "$podman -p 10809:10809 nbdkit-qcow2 qcow2 disk.qcow2" \
    "$podman nbdkit-qcow2 nbdkit-qcow2-img info disk.qcow2"; do
  not_run "$command" "needs the image; see scripts/package"
done
reason="takes minutes or hours; see project/bench-smoke.sh"
not_run 'lab/bench' "$reason"
not_run 'lab/bench --quick' "$reason"
not_run 'lab/bench --cases 11' "$reason"
not_run 'lab/bench --cases 12' "$reason"
not_run 'lab/grow-device' "$reason"
not_run 'lab/pictures --out /tmp/pictures' "see project/pictures-smoke.sh"
not_run 'lab/pictures --out /tmp/pictures --cold --quick slices' "see project/pictures-smoke.sh"
not_run 'lab/comparison' "takes half an hour; see project/comparison-smoke.sh"
not_run 'lab/comparison --rounds 3 --seconds 1 --size 512M' "takes 30 minutes"
not_run 'lab/processors' "see project/processors-smoke.sh"
not_run 'lab/cost --threads 1' "see project/cost-smoke.sh"
for command in "1-3 --rows '^(?!create)' --rounds 1" \
    "5,6 --rows 'random read 4K|first' --rounds 5" '7,8 --rounds 5'; do
  not_run "lab/bench --cases $command --seconds 0.5 --size 1G" "$reason"
done
not_run 'lab/bench --cases 14 --rounds 3 --size 1G --noise 400 --out /dev/shm/live' "$reason"
not_run 'lab/bench --cases 15' "$reason"
not_run 'lab/pictures --work /dev/shm --rounds 3 pause' "see project/pictures-smoke.sh"

# break_cluster IMAGE: the L2 entry of the guest cluster at 5 * 64K is invalid.
break_cluster ()
{
  header_patch "$1" $(((4 << 16) + 8 * 5)) Q 0x8000000000000200
}

before ()
{
  make_files
  case "$1" in
    "You do not have to install the plugin."*)
      mkdir -p plugin/.libs
      ln -s "$PLUGIN" plugin/.libs/ ;;
    "an image that I want as a raw file")
      rm disk.raw ;;
    "an image that is dirty, marked corrupt,"*)
      # The bits of a version 3 header; and a cluster that is counted and not used.
      header_patch disk.qcow2 72 Q 3
      truncate -s $((301 * 65536)) disk.qcow2
      header_patch disk.qcow2 $((0x20000 + 2 * 300)) H 1
      if qemu-img check -f qcow2 disk.qcow2; then fail "nothing to repair"; fi
      is_marked_corrupt disk.qcow2 ;;
    "an image that this does not repair:"*)
      break_cluster disk.qcow2
      if served "$PLUGIN" disk.qcow2 check=repair; then fail "it was repaired"; fi
      rm disk.raw ;;
    "an image that another program uses:"*)
      start_nbdkit -r -- disk.qcow2
      hold_connection ;;
    "an image from a stranger:"*|"an upload from a stranger:"*)
      cp disk.qcow2 upload.qcow2 ;;
    "An image behind HTTP:"*|"The same as the base of an overlay here,"*)
      serve_web ;;
    "an image that depends on backing files:"*)
      make_image overlay.qcow2 1G backing_file=disk.qcow2,backing_fmt=qcow2
      qemu-io -f qcow2 -c 'write -P 3 4M 1M' overlay.qcow2
      qemu-img convert -f qcow2 -O raw overlay.qcow2 then.raw ;;
    "a directory of images,"*)
      mkdir images
      cp disk.qcow2 images ;;
    "an encrypted image,"*)
      printf hush > secret.txt
      qemu-img create -q -f qcow2 --object secret,id=s,file=secret.txt \
        -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 \
        secret.qcow2 5M ;;
  esac
}

serving ()
{
  case "$1" in
    "An image behind HTTP:"*)
      nbdcopy "nbd+unix:///?socket=$sockdir/disk.sock" served.raw ;;
    "The same as the base of an overlay here,"*)
      write_hello "$sockdir/local.sock" ;;
  esac
}

after ()
{
  case "$1" in
    "In a checkout of this source,"*|"Control-C or"*) ;;
    "To build and install it by hand:"|"This command installs the packages"*|\
    "On Debian this makes Debian packages"*|"Install both with apt-get"*|\
    "On Fedora, the release archive"*|"A container image is made by"*|\
    "or without a registry"*|"The image is made from"*|\
    "This one builds and tests it"*|"This makes the archive of a release"*|\
    "With a key that gpg has"*|"The same commit always gives"*) ;;
    "You do not have to install the plugin."*) ;;
    "Measure it yourself"|"The machine was a virtual one"*|\
    "Well-known articles about qcow2"*|"On 1 December 2026 this command"*) ;;
    "Check an image, serve its disk,"*)
      # They say what README shows.
      sed -n '/^```console/,/^```$/p' "$srcdir/../README.md" | grep -v '^\($ \|```\)' > shown
      [ "$(wc -l < shown)" -ge 7 ]
      diff -b shown out ;;
    "an image: is it in order?"*)
      same disk.qcow2 then.raw
      truncate -s 2M disk.qcow2
      if run_command "nbdkit-qcow2-img check disk.qcow2"; then fail "not in order"; fi ;;
    "an image that I want as a raw file")
      same disk.qcow2 disk.raw ;;
    "An image behind HTTP:"*)
      same_raw served.raw then.raw ;;
    "The same as the base of an overlay here,"*)
      qemu-img rebase -u -f qcow2 -F qcow2 -b disk.qcow2 local.qcow2
      has_hello local.qcow2 ;;
    "a raw file that I want as an image")
      same new.qcow2 disk.raw ;;
    "an image that takes too much space"*)
      same small.qcow2 then.raw
      [ "$(allocated_kib small.qcow2)" -lt "$(($(allocated_kib disk.qcow2) / 4))" ] ;;
    "a disk that is too small, or too large")
      grep 11811160064 sizes
      [ "$(virtual_size disk.qcow2)" = 1073741824 ]
      same disk.qcow2 then.raw ;;
    "an image that is dirty, marked corrupt,"*)
      check_clean disk.qcow2
      if is_marked_corrupt disk.qcow2; then fail "is marked corrupt"; fi
      same disk.qcow2 then.raw ;;
    "an image that this does not repair:"*)
      # All but the cluster that is broken now.
      dd if=/dev/zero of=then.raw bs=64K seek=5 count=1 conv=notrunc
      same_raw disk.raw then.raw ;;
    "an image that another program uses:"*)
      grep 'export-size: 1073741824' out
      drop_connections
      stop_nbdkit
      # Now somebody has it who may write.
      start_nbdkit disk.qcow2
      hold_connection
      if served -r "$PLUGIN" disk.qcow2 2> message; then fail "not locked"; fi
      grep "$nbdkit_pid.* it may write, so stop it first" message
      drop_connections
      stop_nbdkit ;;
    "an upload from a stranger:"*)
      make_image upload.qcow2 1G backing_file=disk.qcow2,backing_fmt=qcow2
      if run_command "nbdkit-qcow2-validate --policy upload upload.qcow2"; then
        fail "another file"
      fi ;;
    "an image from a stranger:"*)
      same upload.qcow2 upload.raw
      make_image upload2.qcow2 1G backing_file=disk.qcow2,backing_fmt=qcow2
      if served -r "$PLUGIN" upload2.qcow2 untrusted=true; then fail "another file"; fi ;;
    "an image that depends on backing files:"*)
      if qemu-img info -f qcow2 overlay.qcow2 | grep backing; then fail "still there"; fi
      same overlay.qcow2 then.raw ;;
    "a disk to back up"*)
      check_clean disk.qcow2
      same restored.qcow2 then.raw
      qemu-io -f qcow2 -c 'write -P 3 1M 4k' disk.qcow2
      for command in 'backup disk.qcow2 backups' \
          'restore -O qcow2 backups again.qcow2'; do
        run_command "nbdkit-qcow2-img $command"
      done
      qemu-img compare -f qcow2 -F qcow2 disk.qcow2 again.qcow2
      [ "$(allocated_kib backups/000002.qcow2)" -lt 1024 ] ;;
    "a disk that a test spoils:"*)
      qemu-img snapshot -l disk.qcow2 | grep clean
      qemu-io -f qcow2 -c 'write -P 9 0 1M' disk.qcow2
      run_command "nbdkit-qcow2-img snapshot -a clean disk.qcow2"
      same disk.qcow2 then.raw ;;
    "A disk for a virtual machine."*)
      grep 'wrote 4096/4096 bytes' out
      qemu-io -f qcow2 -c 'read -P 7 64k 4k' -c 'read -P 1 0 64k' disk.qcow2 | tee now
      if grep -i 'verification failed' now; then fail "not written"; fi ;;
    "an encrypted image,"*)
      grep 'export-size: 5242880' out ;;
    "a disk in use:"*)
      qemu-img snapshot -l disk.qcow2 | grep now
      check_clean disk.qcow2 ;;
    "a directory of images,"*)
      grep '^export="disk.qcow2"' out ;;
    "Memory for mappings."*)
      grep 'to read at full speed *l2-cache=1M' out ;;
    "The comparison"|"Images behind NBD"|"Many processors"|"What a request costs"|Commands|\
    "Changes of a disk in use"|"Bitmaps that survive a crash"|"Devices that grow."*)
      # scripts that are not run
      ;;
    "The counters of a server"*)
      grep '"evictions": 0' out ;;
    *) fail "nobody judges: $1" ;;
  esac
}

judge ()
{
  case "$1" in
    before) before "$2" ;;
    command) if [ -e disk.qcow2 ]; then virtual_size disk.qcow2 >> sizes; fi ;;
    serving) serving "$2" ;;
    after) after "$2" ;;
  esac
}

for document in README.md doc/INSTALL.md doc/PERFORMANCE.md; do
  plain_units "$srcdir/../$document"
done > "$tmp/units"
[ "$(grep -c '^= ' "$tmp/units")" -ge 20 ]
run_units judge < "$tmp/units"
