#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# All commands of README.md work one after the other, on one image: no row leaves something
# behind that makes a later one fail.  (project/readme-commands.sh runs each row alone, and
# judges what it does.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version
requires busybox httpd --help
. "$srcdir/lib/ceph.sh"
. "$srcdir/lib/commands.sh"
in_network_namespace

not_run 'scripts/quickstart' "installs packages; see project/quickstart.sh"
not_run 'make -C build/release uninstall' "nothing is installed here"

mkdir "$tmp/here"
cd "$tmp/here"
# What the rows say that the user has.
make_files
rm disk.raw
cp disk.qcow2 upload.qcow2
mkdir images
cp disk.qcow2 images
make_image overlay.qcow2 1G backing_file=disk.qcow2,backing_fmt=qcow2
printf hush > secret.txt
qemu-img create -q -f qcow2 --object secret,id=s,file=secret.txt \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 secret.qcow2 5M
serve_web

plain_units "$srcdir/../README.md" > "$tmp/units"
title='' command=''
while IFS= read -r line; do
  if [[ "$line" = "= "* ]]; then
    title="${line#= }"
    # Here two sockets are one that are in different directories there.
    rm -f "$sockdir/disk.sock"
    # The user stops the servers.
    for name in $(servers); do end_server "$name"; done
    continue
  fi
  command+="$line"
  if [[ "$line" = *\\ ]] || ! bash -n -c "$command" 2> /dev/null; then
    command+=$'\n'
    continue
  fi
  if [[ -n "$command" && ( -z "${not_here:-}" || "$command" != *https:* ) ]] &&
     ! is_not_run "$command"; then
    run_command "$command" > out 2>&1 || { cat out; fail "$title: failed: $command"; }
    # Nothing that succeeds says that it failed.
    if grep -v '^No errors were found on the image.$' out | grep -i error; then fail "$title: an error in: $command"; fi
  fi
  command=""
done < "$tmp/units"
for name in $(servers); do end_server "$name"; done

# Only the virtual machine has written.
check_clean disk.qcow2
printf '\7%.0s' {1..4096} | dd of=then.raw bs=64K seek=1 conv=notrunc
same disk.qcow2 then.raw
