#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# map --svg and info --svg draw well-formed pictures, whose numbers are those of map, and
# which stay small for huge disks, long chains and scattered data.  Whatever names say,
# they are only text.  map --snapshot tells what map tells of the disk that is reverted to it.
#
# Environment: SEED (default 1: what is tested are pictures, not images).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

RANDOM=${SEED:=1}
echo "SEED=$SEED"

# scatter IMAGE MEGABYTES COUNT: writes data and zeros at random.
scatter ()
{
  local i

  for ((i = 0; i < $3; ++i)); do
    echo "write -P $((i + 1)) $((RANDOM % ($2 * 16 - 16) * 64))k" \
      "$(((1 + RANDOM % 3) * 64))k"
    echo "write -z $((RANDOM % ($2 * 16 - 16) * 64))k 64k"
  done | qemu-io -f qcow2 "$1" > "$tmp/scattered"
}

# The texts of a picture, one a line; fails unless it is well-formed, and a picture and
# nothing else.
texts ()
{
  "$python" - "$1" "${2:-6000}" <<'PY'
import sys
import xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
space = "{http://www.w3.org/2000/svg}"
elements = list(root.iter())
assert root.tag == space + "svg", root.tag
assert {e.tag for e in elements} <= {space + t for t in ("svg", "title", "rect", "text")}
assert not any("href" in a or a.startswith("on") for e in elements for a in e.attrib)
assert len(elements) < int(sys.argv[2]), len(elements)
width, height = (float(root.get(a)) for a in ("width", "height"))
for e in elements:
    for c in e.text or "":
        assert c.isprintable() or c == "\n", repr(c)
    if e.tag == space + "rect" and e.get("width") != "100%":
        x, y, w, h = (float(e.get(a)) for a in ("x", "y", "width", "height"))
        assert 0 <= x and x + w <= width + 1 and 0 <= y and y + h <= height, e.attrib
    if e.tag == space + "text":
        print(e.text)
assert root.find(space + "title").text
PY
}

# draw COMMAND ARGUMENT...: the texts of the picture are then in "texts".
draw ()
{
  (cd ours && img "$1" --svg "${@:2}") > picture.svg
  texts picture.svg > texts
  nothing_left
}

# same_numbers IMAGE ARGUMENT...: does the picture say what map says in JSON?
same_numbers ()
{
  draw map "$@"
  (cd ours && img map --output=json "$@") > map.json
  "$python" - <<'PY'
import json
runs = json.load(open("map.json"))
texts = open("texts").read().split("\n")
def has(text):
    assert any(line.startswith(text) or "; " + text in line for line in texts), text
has("The disk: %d bytes" % sum(r["length"] for r in runs))
has("not stored: %d bytes" % sum(r["length"] for r in runs if not r["present"]))
has("zeros: %d bytes" % sum(r["length"] for r in runs if r["present"] and
                            (r["zero"] or not r["data"])))
for depth in {r["depth"] for r in runs}:
    mine = [r for r in runs if r["depth"] == depth]
    has("data: %d bytes" % sum(r["length"] for r in mine if r["data"] and not r["zero"]))
    compressed = sum(r["length"] for r in mine if r["compressed"])
    if compressed:
        has("compressed: %d bytes" % compressed)
PY
}

cd ours
qemu-img create -q -f qcow2 base.qcow2 20M
scatter base.qcow2 20 10
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 top.qcow2 30M
scatter top.qcow2 30 15
qemu-img snapshot -c one top.qcow2
qemu-img resize -q top.qcow2 35M
scatter top.qcow2 30 15
qemu-img snapshot -c two top.qcow2
scatter top.qcow2 30 15
qemu-img convert -c -O qcow2 base.qcow2 small.qcow2
qemu-img convert -O raw base.qcow2 disk.raw
qemu-img create -q -f qcow2 -o cluster_size=2M empty.qcow2 0
cd ..

for image in base.qcow2 top.qcow2 small.qcow2 disk.raw; do same_numbers "$image"; done
same_numbers -s $((RANDOM % 100 * 65536)) -l $((1 + RANDOM % 100))k top.qcow2
same_numbers --snapshot one top.qcow2
draw map empty.qcow2

# A snapshot's map is that of the disk that is reverted to it.
for name in one two; do
  cp ours/top.qcow2 ours/reverted.qcow2
  qemu-img snapshot -a $name ours/reverted.qcow2
  (cd ours && img map --output=json --snapshot $name top.qcow2) > got
  (cd ours && img map --output=json reverted.qcow2) | diff - got
  (cd ours && img map --snapshot $name -s 1M -l 3M top.qcow2) | tail -n +2 > got
  (cd ours && img map -s 1M -l 3M reverted.qcow2 | tail -n +2 | sed s/reverted/top/) |
    diff - got
done
rm ours/reverted.qcow2
img_refused 'no snapshot "none"' map --snapshot none top.qcow2
img_refused 'raw images do not support' map --snapshot one disk.raw
img_refused 'cannot be used together' map --svg --output=json top.qcow2
img_refused 'cannot be used together' info --svg --output=json top.qcow2
img_refused 'cannot be used together' info --svg --backing-chain top.qcow2

# What info says about snapshots: seven have a line, but all count.
same_users ()
{
  local image=$1 name

  draw info "$image"
  (cd ours && img map --output=json "$image" && for name in "${@:2}"; do
     img map --output=json --snapshot "$name" "$image"; done) > maps
  "$python" - "${@:2}" <<'PY'
import json
import sys
decoder, text, users = json.JSONDecoder(), open("maps").read(), []
while text.strip():
    runs, end = decoder.raw_decode(text.lstrip())
    text = text.lstrip()[end:]
    used = set()
    for r in runs:
        if r["depth"] == 0 and r["data"] and "offset" in r:
            used |= set(range(r["offset"] >> 16, r["offset"] + r["length"] + 65535 >> 16))
    users.append(used)
lines = open("texts").read().split("\n")
def only(i):
    return users[i] - set().union(*(users[:i] + users[i + 1:]))
def has(name, used):
    text = "%s: %d bytes" % (name, len(used) << 16)
    assert any(line.startswith(text) for line in lines), (text, lines)
whats = ["the disk"] + ['snapshot "%s"' % name for name in sys.argv[1:8]]
for i, what in enumerate(whats):
    at = [n for n, line in enumerate(lines) if line.startswith(what + ": ")][0]
    for name, n in (("in the file", len(users[i])),
                    ("used by nothing else", len(only(i)))) + \
            ((("shared with the disk", len(users[i] & users[0])),) if i else ()):
        text = "%s: %d bytes" % (name, n << 16)
        assert text in " ".join(lines[at + 1:at + 3]), (what, text, lines[at:])
alone = set().union(*(only(i) for i in range(1, len(users))))
has("several snapshots", set().union(*users[1:]) - alone - users[0])
if len(users) > 8:
    has("%d more snapshots: used by only one of them" % (len(users) - 8),
        set().union(*(only(i) for i in range(8, len(users)))))
PY
}

same_users top.qcow2 one two
qemu-img create -q -f qcow2 ours/many.qcow2 16M
for i in {1..9}; do
  case $i in
    7) change='write -P 1 0 1M' ;;
    9) change='write -P 3 4M 2M' ;;
    *) change='write -P 4 9M 64k' ;;
  esac
  qemu-io -f qcow2 -c "$change" ours/many.qcow2
  qemu-img snapshot -c "s$i" ours/many.qcow2
done
qemu-io -f qcow2 -c 'write -P 2 0 1M' -c 'write -P 2 4M 2M' ours/many.qcow2
same_users many.qcow2 s{1..9}
draw info disk.raw
draw info empty.qcow2
draw info small.qcow2

# Names that are more than text elsewhere.
evil=$'<\/text><script>alert(1)<\/script>]]>"\'&amp;\x01\e[31m\n\xff\xc3'
cp ours/top.qcow2 "ours/${evil//\//}.qcow2"
long="$(printf '%0200d' 7)"
qemu-img snapshot -c "<&\"'>"$'\e\x7f' "ours/${evil//\//}.qcow2"
qemu-img snapshot -c "$long" "ours/${evil//\//}.qcow2"
for i in {1..9}; do qemu-img snapshot -c "more <$i>" "ours/${evil//\//}.qcow2"; done
for command in map info "map --snapshot $long"; do
  # shellcheck disable=SC2086
  draw $command "${evil//\//}.qcow2"
  grep -F '<' texts
  if grep '.\{220\}' texts; then fail "a long line"; fi
done
draw info "${evil//\//}.qcow2"
grep -F "snapshot \"<&\"'>??\"" texts
grep '6 more snapshots: used by only one of them: ' texts
rm "ours/${evil//\//}.qcow2"

# Huge, scattered, and long.
cd ours
qemu-img create -q -f qcow2 -o cluster_size=2M huge.qcow2 64T
for i in 0 1 2 3; do echo "write $((RANDOM % 8000 + i * 16000))G 64k"; done |
  qemu-io -f qcow2 huge.qcow2
qemu-img create -q -f qcow2 -o cluster_size=512 scattered.qcow2 8M
"$python" -c '
import random
order = list(range(0, 16384, 2))
random.Random(int('"$SEED"')).shuffle(order)
for i in order: print("write %d 512" % (i * 512))' |
  qemu-io -f qcow2 scattered.qcow2 > /dev/null
previous=base.qcow2
for i in {1..20}; do
  qemu-img create -q -f qcow2 -b "$previous" -F qcow2 "chain$i.qcow2"
  previous=chain$i.qcow2
done
scatter chain1.qcow2 20 3
scatter chain20.qcow2 20 3
cd ..
for image in huge.qcow2 scattered.qcow2 chain20.qcow2; do
  draw map "$image"
  draw info "$image"
  [ "$(file_size picture.svg)" -lt 1000000 ]
done
draw map scattered.qcow2
grep 'in 8192 pieces\|in 81[0-9][0-9] pieces' texts
draw map chain20.qcow2
grep '14 more files' texts
draw map huge.qcow2
grep 'The disk: 70368744177664 bytes (64 TiB)' texts
