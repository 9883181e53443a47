#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Lists of exports: whatever the names of snapshots, bitmaps and files of a directory, and
# however many there are, clients soon get a list that they can use.  Each name in it
# identifies one export.  Omitted exports are reported once.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"

# snapshots: gives $img a table of snapshots, whose ids and names are the lines of a Python
# generator on stdin.  All have the same L1 table, with one empty entry.
snapshots ()
{
  rm -f "$img"
  make_image "$img" 1M
  { echo 'def entries():'; sed 's/^/  /'; cat <<'PY'
import struct, sys
out = [b""]
for n, (id, name) in enumerate(entries(), 1):
    e = struct.pack(">QIHHIIQII", l1, 1, len(id), len(name), 0, 0, 0, 0, 16)
    e += struct.pack(">QQ", 0, 1 << 20) + id + name
    out.append(e + bytes(-len(e) % 8))
with open(sys.argv[1], "r+b") as f:
    f.seek(l1)
    f.write(bytes(65536) + b"".join(out))
    f.truncate(-(-f.tell() // 65536) * 65536)
    f.seek(60)
    f.write(struct.pack(">IQ", n, l1 + 65536))
PY
  } | "$python" -c 'import os, sys
l1 = -(-os.stat(sys.argv[1]).st_size // 65536) * 65536
exec(sys.stdin.read())' "$img"
}

# listed: the names that a client gets, with one request.
listed ()
{
  "$python" - "$uri" <<'PY'
import nbd, sys
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(sys.argv[1])
names = []
h.opt_list(lambda name, description: names.append(name) and 0)
h.opt_abort()
assert len(set(names)) == len(names), "names are not unique"
print(*names, sep="\n")
PY
}

# told N PATTERN: the log has N lines that match.
told ()
{
  [ "$(grep -cE -- "$2" "$tmp/main.log")" = "$1" ]
}

# Names that NBD does not carry, that are not unique, or that mean something else.
snapshots <<'PY'
yield b"1", b"monday"
yield b"2", b"x" * 4096
yield b"3", b"x" * 4097             # too long: by its id
yield b"4", b"caf\xc3\xa9"
yield b"5", b"caf\xe9"              # not UTF-8: by its id
yield b"6", b"\xed\xa0\x80"         # likewise
yield b"7", b"monday"               # the second of that name
yield b"8", b"layer:0"              # means a layer
yield b"9", b""
yield b"10", b"12"                  # the id of another one, which can't be told
yield b"12", b"monday"
yield b"13", b"nul\0rest"
yield b"i\xff", b"n\xff"            # nothing to tell it by
yield b"1", b"monday"               # likewise
yield b"", b""                      # likewise
PY
long=$("$python" -c 'print("x" * 4096)')
start_nbdkit file="$img"
for _ in 1 2; do listed | tee "$tmp/list"; done
printf '%s\n' '' monday "$long" 3 $'caf\xc3\xa9' 5 6 7 8 9 12 nul layer:0 > "$tmp/expected"
cmp "$tmp/list" "$tmp/expected"
told 1 'left out of the list of exports: 4 '
told 0 'ends after'
# Each can be had, and clients that look at all of them get through.
nbdinfo --list --json "$uri" > "$tmp/json"
"$python" - "$tmp/json" "$tmp/expected" <<'PY'
import json, sys
exports = json.load(open(sys.argv[1]))["exports"]
names = open(sys.argv[2], encoding="utf-8").read().split("\n")[:-1]
assert [e["export-name"] for e in exports] == names
assert all(e["export-size"] == 1 << 20 for e in exports)
PY
stop_nbdkit

# 10,000 of 12,000.
snapshots <<'PY'
for i in range(12000):
    yield b"%d" % i, b"snapshot %d" % i
PY
start_nbdkit file="$img"
for _ in 1 2; do listed > "$tmp/list"; done
[ "$(wc -l < "$tmp/list")" = 10000 ]
told 1 'ends after 10000:'
told 0 'left out'
nbdinfo --size "nbd+unix:///snapshot%2011999?socket=$sock"
stop_nbdkit

# As many as there may be, none of them with a name of its own.  (To compare each with each
# takes more than a minute.)
snapshots <<'PY'
for i in range(65536):
    yield b"%d" % (i // 2), b"all the same"
PY
NBDKIT_WRAPPER="${soon[*]}" start_nbdkit file="$img"
"$python" -c 'import nbd, sys
for i in range(3):
    h = nbd.NBD()
    h.set_opt_mode(True)
    h.connect_uri(sys.argv[1])
    assert h.opt_list(lambda name, description: 0) == 10000' "$uri"
stop_nbdkit
told 1 'ends after 10000:'
told 1 'left out of the list of exports: 32768 '

# Bitmaps.
rm "$img"
make_image "$img" 1M
for name in day-1 day-2 day-3 day-4; do qemu-img bitmap --add "$img" $name; done
sed -i 's/day-2/day\xff2/g; s/day-4/day-3/g' "$img"
start_nbdkit -r -- file="$img"
[ "$(listed | tr '\n' ' ')" = ' layer:0 bitmap:day-1 bitmap:day-3 ' ]
told 1 'left out of the list of exports: 2 '
nbdinfo --list --json "$uri" | "$python" -m json.tool
nbdinfo --size "nbd+unix:///bitmap:day%FF2?socket=$sock"
stop_nbdkit

# A directory.
mkdir "$tmp/images"
make_image "$tmp/images/a" 1M
cp "$tmp/images/a" "$tmp/images/"$'b\xff'
start_nbdkit dir="$tmp/images"
for _ in 1 2; do [ "$(listed)" = a ]; done
told 1 'left out of the list of exports: 1 '
"$python" -c 'import os, sys
for i in range(10001):
    os.link(sys.argv[1] + "/a", "%s/%d" % (sys.argv[1], i))' "$tmp/images"
for _ in 1 2; do listed > "$tmp/list"; done
[ "$(wc -l < "$tmp/list")" = 10000 ]
told 1 'ends after 10000:'
stop_nbdkit
