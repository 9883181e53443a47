#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# check-report is JSON that agrees with qemu-img check, whatever the name of the image; it
# is replaced atomically; and its size, and that of the messages, is limited however many
# faults there are.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

report="$tmp/report.json"

check ()
{
  "$NBDKIT" -U - "$PLUGIN" "$@" check-report="$report" --run true
}

# The numbers of qemu-img check.
img="$tmp/a.qcow2"
for options in compat=v3 compat=v2 cluster_size=512 cluster_size=2M,refcount_bits=8; do
  rm -f "$img"
  make_image "$img" 32M "$options"
  qemu-io -f qcow2 -c 'write -P 1 0 1M' -c 'write -P 2 10M 64k' -c 'write -c -P 4 4M 2M' \
    -c 'write -P 2 9M 64k' -c 'write -P 9 20M 3000' "$img"
  check "$img" check=quick 2> "$tmp/err"
  grep -q clean "$tmp/err"
  if grep layers "$tmp/err"; then fail "there is one layer"; fi
  qemu-img check --output=json "$img" > "$tmp/qemu.json"
  "$python" - "$report" "$tmp/qemu.json" "$img" "$(file_size "$img")" <<'PY'
import json, sys
ours, qemu = (json.load(open(n)) for n in sys.argv[1:3])
top = ours["layers"][0]
for key in ("total-clusters", "allocated-clusters", "fragmented-clusters",
            "compressed-clusters", "image-end-offset", "format"):
    assert top.get(key, 0) == qemu.get(key, 0), (key, top.get(key), qemu.get(key))
assert ours["check-errors"] == 0 and ours["verdict"] == "clean" and ours["ok"]
assert ours["filename"] == top["filename"] == sys.argv[3]
assert top["virtual-size"] == 32 << 20 and top["file-size"] == int(sys.argv[4])
assert top["errors"] == [] and top["errors-omitted"] == 0
PY
done

# Names are any bytes.
for name in 'a b' "q'\"\\" $'new\nline' $'\xff\xc3\xa9\xc3' '-dash' 'a=b' \
  $'\xf4\x8f\xbe\x80'; do
  cp "$img" "$tmp/$name"
  check file="$tmp/$name" check=quick 2> "$tmp/err"
  "$python" - "$report" "$tmp/$name" <<'PY'
import json, os, sys
name = json.load(open(sys.argv[1]))["filename"]
assert os.fsencode(name) == os.fsencode(sys.argv[2]), (name, sys.argv[2])
PY
  rm "$tmp/$name"
done

# Everything is wrong: a bound.
header_patch "$img" 76 I 0
rm "$img"
make_image "$img" 64M cluster_size=512
qemu-io -f qcow2 -c 'write -P 1 0 4M' "$img"
l2=$(header_patch "$img" | sed -n 's/^l2 //p')
"$python" - "$img" "$l2" <<'PY'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    for at in (int(sys.argv[2]),):
        f.seek(at)
        f.write(struct.pack(">64Q", *[0x3f00000000000102 + i * 7 for i in range(64)]))
    f.seek(48)
    rt, = struct.unpack(">Q", f.read(8))
    f.seek(rt)
    rb = struct.unpack(">64Q", f.read(512))
    for b in rb:
        if b:
            f.seek(b)
            f.write(bytes(i * 7 & 255 for i in range(512)))
PY
if check "$img" check=quick 2> "$tmp/err"; then fail "was served"; fi
[ "$(wc -l < "$tmp/err")" -le 25 ]
"$python" - "$report" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
l = r["layers"][0]
listed = sum(e["count"] for e in l["errors"])
assert len(l["errors"]) <= 1000, len(l["errors"])
assert l["errors-omitted"] > 0
assert listed + l["errors-omitted"] == r["corruptions"] + r["leaks"]
assert r["verdict"] == "corrupt" and not r["ok"]
PY

# It replaces what is there; where it can't be written nothing is served.
echo "{}" > "$tmp/old"
ln -s old "$tmp/link"
report="$tmp/link"
if check "$img" check=quick; then fail "was served"; fi
[ -L "$tmp/link" ]
"$python" -m json.tool "$tmp/old" > /dev/null
[ -z "$(find "$tmp" -name '*.tmp')" ]
rm "$img"
make_image "$img" 1M
report="$tmp/none/r.json"
if check "$img" check=quick 2> "$tmp/err"; then fail "was served"; fi
grep check-report "$tmp/err"
report=/dev/stdout
check "$img" check=quick | "$python" -m json.tool
# A link to an open file that has lost its name, as /dev/stdout may be: it stays a link.
exec 5<> "$tmp/gone"
rm "$tmp/gone"
ln -s /proc/self/fd/5 "$tmp/open"
report="$tmp/open"
check "$img" check=quick
[ -L "$tmp/open" ]
"$python" -m json.tool "$tmp/open"
refused 'cannot be replaced' "$img" stats="$tmp/open"
exec 5>&-
report="$tmp/report.json"

# Parameters.
refused "check-report= requires check=" "$img" check-report="$tmp/r.json"
refused "check=no: must be off, quick, full, repair or repair-leaks" "$img" check=no
refused "untrusted=true cannot be used with check=repair" "$img" untrusted=true \
  check=repair

# A report never replaces an image, the one that is checked or another.
make_image "$tmp/kept.qcow2" 1M
make_image "$tmp/other.qcow2" 1M
cp "$tmp/kept.qcow2" "$tmp/kept.before"
for image in kept other; do
  if "$NBDKIT" -U - "$PLUGIN" "$tmp/$image.qcow2" check=quick \
       check-report="$tmp/kept.qcow2" --run true; then
    fail "a report was written over an image"
  fi
  cmp "$tmp/kept.qcow2" "$tmp/kept.before"
done

# What is in order but can't be opened is not told to be clean: no passphrase, no backing
# file.
make_image "$tmp/over.qcow2" 1M
qemu-img rebase -u -f qcow2 -b nowhere.qcow2 -F qcow2 "$tmp/over.qcow2"
qemu-img create -q -f qcow2 --object secret,id=s,data=x \
  -o encrypt.format=aes,encrypt.key-secret=s "$tmp/aes.qcow2" 1M
declare -A verdict=([over]=incomplete [aes]=failed)
for name in over aes; do
  rm -f "$report"
  if check "$tmp/$name.qcow2" check=quick 2> "$tmp/err"; then fail "was served"; fi
  cat "$tmp/err"
  grep -q clean "$tmp/err" && fail "said clean"
  tail -n 1 "$tmp/err" | grep "check=quick: \(incomplete\|could not be\)"
  "$python" -c '
import json, sys
r = json.load(open(sys.argv[1]))
assert r["verdict"] == sys.argv[2] and not r["ok"], r' "$report" "${verdict[$name]}"
done

# It is written once: a pipe gets one document, also from a check that was good for nothing.
for name in over aes; do
  status=0
  "$NBDKIT" -U - "$PLUGIN" "$tmp/$name.qcow2" check=quick check-report=/dev/stdout \
    --run true | cat > "$tmp/out" || status=$?
  [ "$status" -eq 1 ]
  "$python" -c 'import json, sys
assert json.load(open(sys.argv[1]))["verdict"] == sys.argv[2]' "$tmp/out" \
    "${verdict[$name]}"
done
