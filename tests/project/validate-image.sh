#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-validate: valid and broken images, and those that cannot be checked, give
# the exit status and the reports that --help promises; names of images may contain any
# characters; and the commands of doc/CI.md, including those of CI jobs, do what it says
# (validate-jobs.sh tries jobs that divide the work).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

cd "$tmp"
mkdir bin images work
export TMPDIR="$tmp/work"
# As if it was installed.
ln -s "$abs_top_builddir/img/nbdkit-qcow2-img" bin/nbdkit-qcow2-validate
PATH="$tmp/bin:$PATH"

# validate STATUS ARGUMENT...: output to out and err.
validate ()
{
  local expected="$1" status=0
  shift
  rm -f results.json results.xml
  nbdkit-qcow2-validate --json results.json --junit results.xml "$@" \
    > out 2> err || status=$?
  cat out err
  [ "$status" = "$expected" ] || fail "exit status $status, not $expected"
  if [ "$expected" != 2 ]; then agree; fi
  # Nothing is left behind.
  [ -z "$(ls work)" ]
}

# TAP, JSON and JUnit say the same.
agree ()
{
  "$python" - out results.json results.xml <<'PY'
import json, re, sys
import xml.etree.ElementTree as xml
tap = open(sys.argv[1], encoding="utf-8").read().split("\n")
results = json.load(open(sys.argv[2]))
junit = xml.parse(sys.argv[3]).getroot()
assert tap[0] == "TAP version 13" and tap[-1] == ""
points = [t for t in tap if re.match("(not )?ok ", t)]
assert tap[-2] == "1..%d" % len(points)
for i, t in enumerate(points):
    assert re.match(r"(not )?ok %d - " % (i + 1), t), t
for t in tap[1:-2]:
    assert re.match(r"(not )?ok |# ", t), t
steps = [s for i in results["images"] for s in i["steps"]]
cases = junit.findall("testsuite/testcase")
assert len(points) == len(steps) == len(cases)
bad = sum(t.startswith("not ok") for t in points)
assert bad == sum(s["status"] in ("failed", "error") for s in steps)
assert bad == len(junit.findall(".//failure") + junit.findall(".//error"))
assert bad == sum(int(t.get("failures")) + int(t.get("errors"))
                  for t in junit.findall("testsuite"))
assert len(results["images"]) == (results["valid"] + results["invalid"] +
                                  results["errors"])
PY
}

# verdicts: of the images, in their order.
verdicts ()
{
  "$python" -c 'import json; print(" ".join(i["verdict"] for i in
    json.load(open("results.json"))["images"]))'
}

random_file a.raw $((5 << 20))
qemu-img convert -f raw -O qcow2 a.raw images/a.qcow2
qemu-img convert -c -f raw -O qcow2 -o cluster_size=4k a.raw images/b.qcow2
make_image images/c.qcow2 5M
before=$(sha256sum images/*)

# --- all in order; a sum

validate 0 images/a.qcow2 images/b.qcow2 images/c.qcow2
[ "$(verdicts)" = "valid valid valid" ]
sum=$(sha256sum < a.raw | cut -d' ' -f1)
validate 0 --sha256 "$sum" images/b.qcow2
grep -x 'ok 3 - images/b.qcow2: sha256' out
validate 1 --sha256 "${sum//[0-7]/8}" images/b.qcow2
grep "the checksum of the disk is $sum" out
validate 0 --no-read --check quick images/a.qcow2
[ "$(grep -c ^ok out)" = 1 ]

# --- all kinds of trouble, each with its exit status

cp images/a.qcow2 corrupt.qcow2
header_patch corrupt.qcow2 l2 Q +512
cp images/a.qcow2 leaks.qcow2
header_patch leaks.qcow2 l2 Q 0
echo nothing > text.qcow2
validate 1 images/a.qcow2 corrupt.qcow2
[ "$(verdicts)" = "valid invalid" ]
grep '^# .*corrupt.qcow2: full check: CORRUPT: 1 corruption' out
validate 0 leaks.qcow2
grep '^# .*1 leaked cluster' out
validate 1 --no-leaks leaks.qcow2
validate 1 --sums <(echo "$sum  leaks.qcow2") leaks.qcow2
validate 3 none.qcow2 images/a.qcow2
[ "$(verdicts)" = "error valid" ]
validate 1 none.qcow2 corrupt.qcow2 images/a.qcow2 text.qcow2
[ "$(verdicts)" = "error invalid valid invalid" ]
validate 2
validate 2 --no-such-option images/a.qcow2
validate 2 --sha256 1234 images/a.qcow2
validate 2 --sha256 "$sum" images/a.qcow2 images/b.qcow2
validate 2 --sums none images/a.qcow2
validate 2 --jobs 0 images/a.qcow2
# Reports go to files.
validate 2 --json - images/a.qcow2
grep 'stdout is for TAP' err
validate 3 --timeout 0.000001 images/a.qcow2
# Nobody hashes that in half a second: it is late, and not damaged.
make_image huge.qcow2 1T
validate 3 --hash --timeout 0.5 huge.qcow2
grep 'longer than 0.5 seconds' out
status=0
nbdkit-qcow2-validate --json "$tmp/none/x" images/a.qcow2 || status=$?
[ "$status" = 3 ]

# A forgotten name of a report costs no image.
for option in --json --junit; do
  status=0
  nbdkit-qcow2-validate "$option" images/*.qcow2 || status=$?
  [ "$status" = 2 ]
done
[ "$(sha256sum images/*)" = "$before" ]

# Nor does a report cost a file that only looks like its own.
bash -c 'echo mine > results.json.$$.tmp
  exec nbdkit-qcow2-validate --json results.json images/a.qcow2'
grep mine results.json.*.tmp
rm results.json.*.tmp
"$python" -m json.tool results.json > /dev/null

# In use.
start_nbdkit images/c.qcow2
nbdsh_run -c 'h.pwrite(b"1", 0)' -c 'h.pwrite(b"0", 0)' -c 'h.zero(4096, 0)' -c 'h.flush()'
validate 3 images/c.qcow2
stop_nbdkit
rm images/c.qcow2
make_image images/c.qcow2 5M
before=$(sha256sum images/*)

# A backing file, and parameters.
make_image over.qcow2 5M backing_file=images/a.qcow2,backing_fmt=qcow2
validate 0 --sha256 "$sum" over.qcow2
validate 3 --untrusted over.qcow2
mv images/a.qcow2 a.qcow2
for check in quick full; do
  validate 3 --check $check over.qcow2
  grep incomplete out
done
mv a.qcow2 images

# --- names

mkdir names
random_file small.raw 65536
qemu-img convert -f raw -O qcow2 small.raw small.qcow2
# shellcheck disable=SC2016,SC1003
for name in 'a b' "'" '"' '$(touch x)' $'new\nok 1 - line' $'\xff\xfe' '-r' '--' '#x' \
            'a=b' 'é' 'file=x' '\' '<&>' $'\e[2J' '%s' '*' $'\u202e' '\xe2\x80\xae' \
            '\x202e'; do
  cp small.qcow2 "names/$name"
done
cp -r names raw
for name in raw/*; do cp small.raw "$name"; done
( cd raw && sha256sum -- * ) > names.sums
( cd names && validate 0 --sums ../names.sums -- * ) > names.out 2>&1 ||
  { cat names.out; fail "names"; }
[ ! -e names/x ] && [ ! -e x ]
[ "$(grep -c '^ok' names/out)" = 60 ]
if LC_ALL=C grep -P '[\x00-\x09\x0b-\x1f\x7f\xff\xfe]' names/out; then
  fail "not printable"
fi
# No two look alike: each name can be told from what is shown.
"$python" - names <<'PY'
import os, re, sys
import xml.etree.ElementTree as xml
os.chdir(os.fsencode(sys.argv[1]))
there = sorted(set(os.listdir(b".")) - {b"out", b"err", b"results.json", b"results.xml"})
def names(shown):
    return sorted(re.sub(rb"\\x(..)", lambda m: bytes.fromhex(m[1].decode()), s.encode())
                  for s in shown)
tap = open("out", encoding="utf-8").read()
assert names(set(re.findall("^ok [0-9]+ - (.*): [a-z0-9 ]+$", tap, re.M))) == there
assert names(t.get("name") for t in xml.parse("results.xml").getroot()) == there
PY
rm -r names raw

# --- filesystems

if mkfs.ext4 -V 2> /dev/null && e2fsck -V 2> /dev/null; then
  truncate -s 8M fs.raw
  mkfs.ext4 -q -F fs.raw
  # A partition of 8 MiB at 1 MiB.
  truncate -s 10M part.raw
  printf '\x00\x00\x00\x00\x83\x00\x00\x00\x00\x08\x00\x00\x00\x40\x00\x00' |
    dd of=part.raw bs=1 seek=446 conv=notrunc status=none
  printf '\x55\xaa' | dd of=part.raw bs=1 seek=510 conv=notrunc status=none
  dd if=fs.raw of=part.raw bs=1M seek=1 conv=notrunc status=none
  qemu-img convert -f raw -O qcow2 fs.raw fs.qcow2
  qemu-img convert -f raw -O qcow2 part.raw part.qcow2
  validate 0 --fsck fs.qcow2 part.qcow2
  grep '^ok .*fs.qcow2: filesystem$' out
  grep '^ok .*part.qcow2: filesystem of partition 1$' out
  # The group descriptors.
  qemu-io -f qcow2 -c 'write -P 0x55 5k 1k' part.qcow2
  qemu-io -f qcow2 -c 'write -P 0x55 1028k 2k' part.qcow2
  validate 1 --fsck part.qcow2
  # Nor is it the image's fault if there is no room for the copy, or no memory.
  (ulimit -f 1024; validate 3 --fsck fs.qcow2)
  grep '^not ok .*fs.qcow2: filesystem$' out
  grep "a copy of the filesystem in $TMPDIR: File too large" out
  printf '#!/bin/bash\nkill -9 $$\n' > bin/e2fsck
  chmod +x bin/e2fsck
  validate 3 --fsck fs.qcow2
  grep '^not ok .*fs.qcow2: filesystem$' out
  grep 'killed by signal 9' out
  rm bin/e2fsck
fi

[ "$before" = "$(sha256sum images/*)" ] || fail "an image was changed"

# --- doc/CI.md: commands, also those of CI jobs

( cd images && for i in a b c; do
    qemu-img convert -f qcow2 -O raw "$i.qcow2" "$i.raw"
    echo "$(sha256sum < "$i.raw" | cut -d' ' -f1)  $i.qcow2"
    rm "$i.raw"
  done ) > disks.sha256
sed -n -E 's/^    ( *- (run: )?)?(nbdkit-qcow2-validate .*)/\3/p' <(sed '/^Many images/,$d' "$srcdir/../doc/CI.md") > commands
cat commands
[ "$(wc -l < commands)" = 4 ]
while read -r command; do
  bash -e -c "$command" < /dev/null
done < commands
"$python" -m json.tool images.json > /dev/null
"$python" -c 'import xml.dom.minidom as m; m.parse("images.xml")'
# They fail when they should.
mv corrupt.qcow2 images/
while read -r command; do
  if bash -e -c "$command" < /dev/null; then fail "$command: did not fail"; fi
done < commands

# --- help

nbdkit-qcow2-validate --help > help
manual="$srcdir/../img/nbdkit-qcow2-validate.pod"
mapfile -t listed < <(sed -n 's/^  \(-., \)\?\(--[a-z0-9-]*\).*/\2/p' help)
[ "${#listed[@]}" -gt 20 ]
for option in "${listed[@]}"; do
  grep -q -- "^=item B<$option>" "$manual" || fail "the manual lacks $option"
done
