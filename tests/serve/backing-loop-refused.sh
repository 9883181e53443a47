#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Backing chains that could hang the server are refused at once: loops, FIFOs,
# directories, chains without end.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

create_u ()
{
  qemu-img create -q -u -f qcow2 -b "$2" -F "${3:-qcow2}" "$1" 1M
}

create_u "$tmp/self.qcow2" self.qcow2
refused 'self\.qcow2' file="$tmp/self.qcow2"

create_u "$tmp/a.qcow2" b.qcow2
create_u "$tmp/b.qcow2" a.qcow2
refused '[ab]\.qcow2' file="$tmp/a.qcow2"

# The same file under other names.
ln -s c.qcow2 "$tmp/c-link.qcow2"
create_u "$tmp/c.qcow2" ./c-link.qcow2
refused 'c(-link)?\.qcow2' file="$tmp/c.qcow2"
create_u "$tmp/d.qcow2" e.qcow2
ln "$tmp/d.qcow2" "$tmp/d2.qcow2"
create_u "$tmp/e.qcow2" d2.qcow2
refused '[de]2?\.qcow2' file="$tmp/d.qcow2"

# An image as its own raw base.
create_u "$tmp/raw-self.qcow2" raw-self.qcow2 raw
refused 'raw-self\.qcow2' file="$tmp/raw-self.qcow2"

mkfifo "$tmp/fifo"
create_u "$tmp/over-fifo.qcow2" fifo raw
refused 'fifo' file="$tmp/over-fifo.qcow2"
create_u "$tmp/over-fifo.qcow2" fifo qcow2
refused 'fifo' file="$tmp/over-fifo.qcow2"
refused 'fifo' file="$tmp/fifo"
create_u "$tmp/over-dir.qcow2" . raw
refused 'director|over-dir|regular' file="$tmp/over-dir.qcow2"
create_u "$tmp/over-tty.qcow2" /dev/zero raw
refused '/dev/zero' file="$tmp/over-tty.qcow2"

# 5,000 layers (all different files).
qemu-img create -q -u -f qcow2 -o cluster_size=512 -b l00001.qcow2 -F qcow2 \
  "$tmp/l00000.qcow2" 64k
mkdir "$tmp/deep"
"$python" - "$tmp/l00000.qcow2" "$tmp/deep" <<'PY'
import sys
image = open(sys.argv[1], "rb").read()
assert image.count(b"l00001.") == 1
for i in range(5000):
    with open("%s/l%05d.qcow2" % (sys.argv[2], i), "wb") as f:
        f.write(image.replace(b"l00001.", b"l%05d." % (i + 1)))
PY
refused 'chain|open files' file="$tmp/deep/l00000.qcow2"
