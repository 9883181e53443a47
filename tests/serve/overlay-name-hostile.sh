#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The name of an image on top, or of the one that a disk has left, in a header that is not
# honest: what is no regular file, is no image, or does not lie over this one, or come from it,
# changes nothing and is not waited for; a ring of images ends soon; a name that cannot be one is
# refused when the server starts.  No URI is connected to, and no name that an image on an NBD
# server has.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

d="$tmp/d"
mkdir "$d" "$d/directory"
make_image "$d/good.qcow2" 1M
img="$d/a.qcow2"

type=0x6e626f76

# named FILE NAME...: the header of FILE has these names (with Python's escapes).
named ()
{
  cp "$d/good.qcow2" "$1"
  "$python" - "$type" "$@" <<'PY'
import struct
import sys
with open(sys.argv[2], "r+b") as f:
    head = bytearray(f.read(65536))
    at, = struct.unpack_from(">I", head, 100)
    while (ext := struct.unpack_from(">II", head, at))[0]:
        at += 8 + (ext[1] + 7) // 8 * 8
    for name in sys.argv[3:]:
        name = eval('b"' + name + '"')
        padded = name.ljust((len(name) + 7) // 8 * 8, b"\0")
        head[at:at + 8 + len(padded)] = struct.pack(">II", int(sys.argv[1], 16), len(name)) + padded
        at += 8 + len(padded)
    f.seek(0)
    f.write(head)
PY
  qemu-img check -f qcow2 "$1"
}

# came NAME [NUMBER [NUMBER]]: the image on top has it as the one that the disk has left; the
# number of the move is behind this name, and behind the name of the image on top.
came ()
{
  type=0x6e626f72 named "$d/new.qcow2" "$1${2:+\0$2}"
  named "$img" "new.qcow2${3:+\0$3}"
}

on_top ()
{
  named "$img" "$1"
}

# served COMMAND: is as nothing.
served ()
{
  "$@"
  start_nbdkit "$img"
  nbdsh_run -c 'h.pwrite(b"x" * 512, 0); h.flush()'
  stop_nbdkit
  check_clean "$img"
}

mkfifo "$d/fifo"
ln -s loop "$d/loop"
truncate -s 1M "$d/raw"
head -c 200 "$d/good.qcow2" > "$d/cut.qcow2"
qemu-img create -q -f qcow2 -b good.qcow2 -F qcow2 "$d/over-another.qcow2"
io "$d/over-another.qcow2" 'write 0 64k'
listening="$sockdir/listening"
"$NBDKIT" -f -U "$listening" -P "$tmp/null.pid" --log=stderr -v null </dev/null >"$tmp/null.log" 2>&1 &
helper_pids+=($!)
await -p $! test -s "$tmp/null.pid"
files=(fifo directory loop raw cut.qcow2 good.qcow2 over-another.qcow2 "" / . ./ .. /dev/zero
       /dev/tty "$d/fifo" raw/x '\0raw' 'raw\0x' "$(printf '%0300d' 1)")
uris=("nbd+unix:///?socket=$listening" "nbd:unix:$listening"
      "json:{\\\"file.filename\\\":\\\"$d/raw\\\"}")
for name in "${files[@]}" "${uris[@]}" a.qcow2 nothing; do
  served on_top "$name"
done
for name in "${files[@]}" new.qcow2 "${uris[@]}" nothing; do
  served came "$name"
done
# What is not there is this one, by another name, if both have the same number.
served came nothing number-1
served came nothing number-1 number-2
served came nothing "" number-1
served came nothing short short
served came nothing '\0\0\0\0\0\0\0\0' '\0\0\0\0\0\0\0\0'
for name in "${uris[@]}" a.qcow2 nothing; do
  came "$name" number-1 number-1
  start_nbdkit "$img"
  refused_connection "is not written: the disk has moved to $d/new.qcow2:"
  stop_nbdkit
done
# The name in an image on an NBD server is not looked for, neither there nor here.
for name in nothing listening "$listening"; do
  named "$img" "$name"
  truncate -s 1M "$img"
  "$NBDKIT" -f -U "$sockdir/remote" file "$img" </dev/null >/dev/null 2>&1 &
  helper_pids+=($!)
  await -p $! listens "$sockdir/remote"
  start_nbdkit lock=false "nbd+unix:///?socket=$sockdir/remote"
  nbdsh_run -c 'h.pwrite(b"x" * 512, 0); h.flush()'
  stop_nbdkit
  kill "${helper_pids[-1]}"
  wait "${helper_pids[-1]}" || :
  unset 'helper_pids[-1]'
  rm -f "$sockdir/remote"
done
if grep -q 'accepted connection' "$tmp/null.log"; then fail "a name has made a connection"; fi

named "$img" "$(printf '%01024d' 1)"
refused_always 'name has 1024 bytes' "$img"
named "$img" 'a\nb'
refused_always 'control character' "$img"
named "$img" one two
refused_always 'twice' "$img"

served named "$img" "$(printf '%01014d' 1)"'\0number-1'
type=0x6e626f72 named "$img" "$(printf '%01024d' 1)"
refused_always 'origin.s name has 1024 bytes' "$img"
type=0x6e626f72 named "$img" one two
refused_always 'twice' "$img"

# A ring: each names the other as the one below it, and as the one on top.
ring ()
{
  for other in a b; do
    named "$img" $other.qcow2
    qemu-img rebase -u -f qcow2 -b $other.qcow2 -F qcow2 "$img"
    mv "$img" "$d/ring-$other.qcow2"
  done
  mv "$d/ring-b.qcow2" "$d/a.qcow2"
  mv "$d/ring-a.qcow2" "$d/b.qcow2"
  NBDKIT_WRAPPER="${soon[*]}" start_nbdkit "$img" backing="$d/raw" backing-format=raw
}

ring
nbdsh_run -c 'h.pwrite(b"x" * 512, 0)'
stop_nbdkit
# With large tables, nobody looks at all of it.
make_image "$d/good.qcow2" 2P
ring
refused_connection 'is not written'
stop_nbdkit
