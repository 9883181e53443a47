#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Each command of the manual pages, word for word, does what the page says.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires /usr/bin/python3 -c 'import nbd'
requires nbdcopy --version
requires busybox httpd --help
requires psktool --version
requires_filter cow
. "$srcdir/lib/ceph.sh"
. "$srcdir/lib/commands.sh"
in_network_namespace

# make_overlay: disk.qcow2 is now an overlay of base.qcow2.
make_overlay ()
{
  mv disk.qcow2 base.qcow2
  make_image disk.qcow2 1G backing_file=base.qcow2,backing_fmt=qcow2
  qemu-io -f qcow2 -c 'write -P 3 4M 1M' disk.qcow2
  qemu-img convert -f qcow2 -O raw disk.qcow2 then.raw
}

# change_disk: writes and zeros, through the plugin.
change_disk ()
{
  start_nbdkit disk.qcow2
  nbdsh_run -c 'h.pwrite(b"hello", 1 << 20); h.zero(1 << 20, 2 << 20); h.flush()'
  stop_nbdkit
}

before ()
{
  make_files
  # shellcheck disable=SC2016
  printf '#!/bin/bash\nnbdinfo --size "$1" && echo tested\n' > ./test
  chmod +x test
  case "$1" in
    EXAMPLES)
      cp disk.qcow2 upload.qcow2 ;;
    "NEW IMAGES"|SUBCLUSTERS)
      cp disk.qcow2 base.qcow2
      printf hush > secret.txt ;;
    Flattening|"Copy on read"|Layers)
      make_overlay ;;
    "INTERNAL SNAPSHOTS"|"MANY IMAGES")
      qemu-img snapshot -c monday disk.qcow2
      qemu-io -f qcow2 -c 'write -P 9 0 1M' disk.qcow2
      [ "$1" = "INTERNAL SNAPSHOTS" ] || rm disk.raw ;;
    "Exports of bitmaps"|EXAMPLE|"WITH NBDCOPY")
      cp disk.raw full.raw
      served "$PLUGIN" disk.qcow2 bitmap-add=sunday
      change_disk ;;
    "ENCRYPTED IMAGES")
      rm disk.qcow2
      printf hush > secret.txt
      served "$PLUGIN" disk.qcow2 create=5M encrypt=luks passphrase=hush iter-time=1
      printf below > base.txt
      printf above > overlay.txt
      served "$PLUGIN" base.qcow2 create=5M encrypt=luks passphrase=below iter-time=1
      qemu-img create -q -f qcow2 -o encrypt.format=luks,encrypt.key-secret=s \
        -o encrypt.iter-time=1 --object secret,id=s,file=overlay.txt -u -F qcow2 \
        -b base.qcow2 overlay.qcow2 5M ;;
    "Images behind HTTP")
      serve_web ;;
    "Overlays on remote images")
      mv disk.qcow2 golden.qcow2
      serve_web ;;
    "Images in Ceph")
      serve_ceph disk.qcow2 ;;
    "Writing to an NBD export")
      qemu-io -f qcow2 -c 'write -P 9 0 1M' disk.qcow2 ;;
    "DEVICES THAT GROW"|"New images on devices")
      truncate -s 20M device
      if dev="$(losetup --find --show device)"; then
        # It goes when the last process that has it open ends.
        exec 9<>"$dev"
        losetup --detach "$dev"
        ln -sf "$dev" "$sockdir/disk.device"
        qemu-img create -q -f qcow2 "$dev" 1G
      fi ;;
    "IMAGES FROM OTHERS")
      cp disk.qcow2 upload.qcow2 ;;
  esac
}

serving ()
{
  case "$1" in
    "Images behind HTTP")
      nbdcopy "nbd+unix:///?socket=$sockdir/disk.sock" served.raw ;;
    "Overlays on remote images")
      write_hello "$sockdir/vm.sock" ;;
    "Images in Ceph")
      write_hello "$sockdir/disk.sock" ;;
    "CHANGES WHILE SERVING")
      PYTHONPATH="$srcdir/lib" /usr/bin/python3 -c 'from qmp import Client
Client("disk.qmp").get("blockdev-snapshot-internal-sync", device="disk", name="now")' ;;
  esac
}

after ()
{
  case "$1" in
    EXAMPLES)
      grep 'wrote 4096/4096 bytes' out
      same new.qcow2 disk.raw
      same new.qcow2 then.raw && fail "the virtual machine wrote nothing"
      same disk.qcow2 disk.raw ;;
    CLIENTS)
      grep "hello" out
      grep '^1073741824$' out
      qemu-io -f qcow2 -c 'read -v 4k 5' -c 'read -P 1 0 4k' disk.qcow2 | tee now
      grep hello now
      if grep -i 'verification failed' now; then fail "more was written"; fi ;;
    "Serving over the network")
      [ -z "${TEST_IN_NETWORK:-}" ] || grep 'export-size: 1073741824' out ;;
    "NEW IMAGES")
      for i in new over; do check_clean "$i.qcow2"; done
      same over.qcow2 then.raw
      qemu-img info -f qcow2 secret.qcow2 | grep 'encrypted: yes'
      qemu-img check --object secret,id=s,file=secret.txt --image-opts \
        driver=qcow2,file.filename=secret.qcow2,encrypt.key-secret=s ;;
    "CHECKING IMAGES")
      same disk.qcow2 then.raw
      truncate -s 2M disk.qcow2
      if served "$PLUGIN" disk.qcow2 check=full; then fail "not in order"; fi ;;
    Flattening)
      if qemu-img info -f qcow2 disk.qcow2 | grep backing; then fail "still there"; fi
      same disk.qcow2 then.raw ;;
    "Copy on read")
      same disk.qcow2 then.raw ;;
    Layers)
      grep -E ' 4194304 +1048576 +0 +data' out
      grep -E ' 0 +4194304 +3 +hole,zero' out ;;
    "INTERNAL SNAPSHOTS")
      grep 'export="monday"' out
      same_raw monday.img then.raw
      same_raw same.img then.raw ;;
    "CHANGES BEFORE SERVING")
      qemu-img snapshot -l disk.qcow2 | tee snapshots
      grep today snapshots
      if grep clean snapshots; then fail "not deleted"; fi
      [ "$(grep -c '^tested' out)" = 2 ]
      grep '^11811160064$' out
      [ "$(virtual_size disk.qcow2)" = 1073741824 ]
      same disk.qcow2 then.raw ;;
    "CHANGES WHILE SERVING")
      qemu-img snapshot -l disk.qcow2 | grep now
      check_clean disk.qcow2 ;;
    "Exports of bitmaps")
      grep -E '1048576 +65536 +0 +data' out
      grep -E '2097152 +1048576 +0 +data' out ;;
    EXAMPLE|"WITH NBDCOPY")
      local copy=monday.qcow2
      [ "$1" = EXAMPLE ] || copy=copied.qcow2
      check_clean $copy
      same disk.qcow2 full.raw && fail "nothing has changed"
      qemu-img compare -f qcow2 -F qcow2 disk.qcow2 $copy ;;
    "COMPRESSED IMAGES")
      for i in new small; do
        same "$i.qcow2" then.raw
        [ "$(allocated_kib "$i.qcow2")" -lt 1024 ]
      done
      qemu-img info -f qcow2 new.qcow2 | grep 'compression type: zstd' ;;
    "ENCRYPTED IMAGES")
      grep 'export-size: 5242880' out ;;
    SUBCLUSTERS)
      qemu-img info -f qcow2 over.qcow2 | grep 'extended l2: true'
      same over.qcow2 then.raw ;;
    "EXTERNAL DATA FILES")
      same new.qcow2 then.raw ;;
    "Images behind HTTP")
      same_raw served.raw then.raw ;;
    "Overlays on remote images")
      qemu-img rebase -u -f qcow2 -F qcow2 -b golden.qcow2 overlay.qcow2
      has_hello overlay.qcow2 ;;
    "Images in Ceph")
      has_hello rbd:rbd/disk ;;
    "Writing to an NBD export")
      check_clean disk.qcow2
      same disk.qcow2 then.raw ;;
    "New images on devices")
      [ ! -e "$sockdir/disk.device" ] || check_clean "$sockdir/disk.device" ;;
    "DEVICES THAT GROW")
      [ ! -e "$sockdir/disk.device" ] || grep '"device": true' disk.json ;;
    "MANY IMAGES")
      grep '^export="disk.qcow2"' out
      same disk.qcow2 disk.raw
      same_raw monday.img then.raw ;;
    PROBES)
      [ "$(grep -cx 0 out)" = 1 ]
      grep '^virtual size: 1 GiB' out ;;
    EVENTS)
      grep ' info start image="' events.log ;;
    PROMETHEUS)
      grep '^nbdkit_qcow2_connections_total{server="disk.prom"} ' disk.prom ;;
    "Symbolic links")
      grep 'export-size: 1073741824' out
      same disks/vm-web.qcow2 then.raw ;;
    "SYSTEMD UNITS")
      [ "$(stat -c %a var/lib/nbdkit-qcow2)" = 700 ]
      [ "$(stat -c %a var/lib/nbdkit-qcow2/disk.qcow2)" = 600 ]
      same var/lib/nbdkit-qcow2/disk.qcow2 then.raw ;;
    "IMAGES FROM OTHERS")
      same_raw upload.raw then.raw
      make_image upload2.qcow2 1G backing_file=disk.qcow2,backing_fmt=qcow2
      if served -r "$PLUGIN" upload2.qcow2 untrusted=true; then fail "another file"; fi ;;
    *) fail "nobody judges: $1" ;;
  esac
}

judge ()
{
  case "$1" in
    before) before "$2" ;;
    serving) serving "$2" ;;
    after) after "$2" ;;
  esac
}

for page in plugin/nbdkit-qcow2-{plugin,operation,safety} img/nbdkit-qcow2-apply-changes; do
  pod_units "$srcdir/../$page.pod"
done > "$tmp/units"
[ "$(grep -c '^= ' "$tmp/units")" -ge 18 ]
run_units judge < "$tmp/units"
