#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-validate --policy: what the built-in policies and a policy file refuse, and
# with which codes; files and streams alike; hostile headers as QEMU and oslo.utils judge
# them; in 64 MiB and 10 seconds, without another file.
#
# Environment: SEED repeats the hostile headers; HOSTILE (default 100) is their number;
# MIXTURES (default 5) is that of random images made by QEMU; OSLO_PYTHON is a Python with
# oslo.utils and cryptography (from PyPI; otherwise they are not compared).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
cd "$tmp"
mkdir scratch
export TMPDIR="$tmp/scratch"

# validate STATUS ARGUMENT...: output to out, err and results.json.
validate ()
{
  local expected="$1" status=0
  shift
  rm -f results.json
  "$abs_top_builddir/img/nbdkit-qcow2-img" validate --json results.json "$@" > out 2> err || status=$?
  cat out err
  [ "$status" = "$expected" ] || fail "exit status $status, not $expected"
  [ -z "$(ls scratch)" ]
}

# codes: of all findings, in their order.
codes ()
{
  "$python" -c 'import json
for i in json.load(open("results.json"))["images"]:
    print(*(f["code"] for f in i["findings"]))'
}

# expect POLICY: stdin has lines IMAGE CODES, those of the findings about IMAGE.qcow2, as a
# file and as a stream.
expect ()
{
  local policy="$1" image codes
  local -a files=() pipes=()

  rm -rf pipes
  mkdir pipes
  : > expected
  set +x
  while read -r image codes; do
    echo "$codes" >> expected
    files+=("$image.qcow2")
    pipes+=("pipes/$image")
    mkfifo "pipes/$image"
    cat "$image.qcow2" > "pipes/$image" 2>/dev/null &
  done
  set -x
  for way in files pipes; do
    local -n images=$way
    validate "$(grep -qv '^$' expected && echo 1 || echo 0)" --policy "$policy" \
      "${images[@]}"
    codes | diff -u expected -
  done
  wait
}

# --- the built-in policies ---

make_image plain.qcow2 1M
make_image old.qcow2 1M compat=v2
make_image backing.qcow2 1M backing_file=plain.qcow2,backing_fmt=qcow2
qemu-img create -q -f qcow2 -u -b 'nbd://localhost:1/x' -F raw uri.qcow2 1M
make_image data.qcow2 1M data_file=plain.raw
# Names that are not in use.
cp data.qcow2 data-name.qcow2
header_patch data-name.qcow2 72 Q 0
cp backing.qcow2 format-name.qcow2
header_patch format-name.qcow2 8 Q 0
cp plain.qcow2 snapshot.qcow2
qemu-img snapshot -c s snapshot.qcow2
cp plain.qcow2 bitmap.qcow2
qemu-img bitmap --add bitmap.qcow2 b
qemu-img create -q -f qcow2 --object secret,id=s,data=x \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 luks.qcow2 1M
make_image extended.qcow2 1M extended_l2=on
make_image zstd.qcow2 1M compression_type=zstd
# patched NAME IMAGE PATCH...
patched ()
{
  cp "$2.qcow2" "$1.qcow2"
  header_patch "$1.qcow2" "${@:3}"
}
patched dirty plain 72 Q 1
patched corrupt plain 72 Q 2
patched unknown plain 112 I 0x12345678
patched on-top plain 112 I 0x6e626f76 120 s 78780000
patched moved plain 112 I 0x6e626f72 120 s 78780000

expect upload <<'END'
plain
old
backing backing-file
uri backing-file
data data-file
data-name external-name
on-top external-name
moved external-name
format-name external-name
snapshot
bitmap
luks
extended
zstd
dirty
corrupt
unknown
END
expect strict <<'END'
plain
old
backing backing-file
uri backing-file
data data-file
data-name external-name
on-top external-name
moved external-name
format-name external-name unused-bytes
snapshot snapshots
bitmap bitmaps
luks encrypted
extended extended-l2
zstd zstd
dirty dirty
corrupt marked-corrupt
unknown unknown-extension
END

# What no policy accepts.
printf 'base = upload\n' > all
for key in backing-file data-file external-name encrypted snapshots bitmaps dirty \
           marked-corrupt extended-l2 zstd unknown-extension unused-bytes other-format; do
  echo "$key = allow   # all" >> all
done
printf 'text\n' > text.qcow2
: > empty.qcow2
patched version plain 4 I 1
patched feature plain 72 Q 32
patched bits plain 20 I 8
patched method plain 32 I 3
patched size plain 24 Q $((1 << 40))
patched refcounts plain 56 I 0
patched beyond plain 40 Q $((1 << 30))
patched many backing 72 Q $((32 + 4))
head -c 120000 plain.qcow2 > short.qcow2
head -c 90 plain.qcow2 > shorter.qcow2
expect all <<'END'
text format
empty format
version version
feature unknown-feature
bits header
method header
size sizes
refcounts sizes
beyond truncated
short truncated truncated
shorter truncated
many unknown-feature
END
# All findings, not only the first one.
expect upload <<'END'
many unknown-feature backing-file data-file
END

# --- files of two formats ---

make_image small.qcow2 1M cluster_size=512
for image in plain small; do
  cp $image.qcow2 full.qcow2
  qemu-io -f qcow2 -c 'write -P 1 0 64k' full.qcow2
  mv full.qcow2 $image-full.qcow2
done
"$python" - > both-formats <<'PY'
zip_end = b"PK\5\6" + bytes(16)
for name, image, at, mark, codes in (
        # In the first cluster.
        ("mbr", "plain", 510, b"\x55\xaa", "unused-bytes"),
        ("mbr-small", "small", 510, b"\x55\xaa", "unused-bytes"),
        ("vdi", "plain", 64, b"\x7f\x10\xda\xbe", ""),
        ("tar", "plain", 257, b"ustar", ""),
        ("gpt", "plain", 512, b"EFI PART", "unused-bytes"),
        ("pdf", "plain", 700, b"%PDF-1.4", "unused-bytes"),
        ("ext", "plain", 1080, b"\x53\xef", "unused-bytes"),
        ("swap", "plain", 4086, b"SWAPSPACE2", "unused-bytes"),
        ("lvm", "plain", 512, b"LABELONE", "unused-bytes"),
        ("iso", "plain", 32769, b"CD001", "unused-bytes"),
        # Behind it.
        ("iso-small", "small-full", 32769, b"CD001", ""),
        ("udf-small", "small-full", 34817, b"NSR03", ""),
        # At the end.
        ("vhd", "plain-full", -512, b"conectix", ""),
        ("dmg", "plain-full", -512, b"koly", ""),
        ("zip", "plain-full", -22, zip_end + b"\0\0", ""),
        ("zip-comment", "plain-full", -65557, zip_end + b"\xff\xff", ""),
        # What data may look like.
        ("data-zip", "plain-full", -100, zip_end + b"\0\0", None),
        ("data-gpt", "plain-full", -512, b"EFI PART", None),
        ("data-boot", "small-full", 512 * 20 + 510, b"\x55\xaa", None)):
    with open(image + ".qcow2", "rb") as f:
        data = bytearray(f.read())
    at = at if at >= 0 else len(data) + at
    assert at + len(mark) <= len(data), name
    data[at:at + len(mark)] = mark
    with open(name + ".qcow2", "wb") as f:
        f.write(data)
    print(*([name, "other-format", codes] if codes is not None else [name]))
PY
sed 's/ unused-bytes//; s/ $//' both-formats | expect upload
sed 's/ $//' both-formats | expect strict
printf 'other-format = allow\n' > p
sed 's/ .*//' both-formats | expect p

# What QEMU makes has no bytes that nothing uses, and no marks.
for ((i = 0; i < ${MIXTURES:-5}; ++i)); do
  mkdir mixture
  FEATURES="extended_l2 data_file luks zstd compress" SEED=$((RANDOM * 32768 + RANDOM)) \
    "$python" "$srcdir/lib/mixture.py" make mixture mixture/spec
  validate 1 --policy strict mixture/spec $(grep -lz '^QFI' mixture/*)
  if grep -E '^#? *(other-format|unused-bytes):' out; then
    fail "found in an image of QEMU's"
  fi
  rm -r mixture
done
# Neither has what we change.
serve ()
{
  "$NBDKIT" -U - "$PLUGIN" "$@" --run true
}
serve ours.qcow2 create=1M backing-file=plain-full.qcow2 backing-format=qcow2
serve ours.qcow2 bitmap-add=b
serve ours.qcow2 bitmap-remove=b
serve ours.qcow2 flatten=true
"$abs_top_builddir/img/nbdkit-qcow2-img" amend -o compat=0.10 ours.qcow2
expect strict <<< ours

# --- policy files ---

printf 'base = strict\nsnapshots = allow\n\n# sizes\nmax-virtual-size = 1M\n' > p
make_image large.qcow2 1G
expect p <<'END'
snapshot
bitmap bitmaps
large virtual-size
END
printf 'max-file-size = 128K\n' > p
expect p <<'END'
plain file-size
END
printf 'max-ratio = 100\nmax-file-size = none\n' > p
expect p <<'END'
plain
large ratio
END
while IFS='|' read -r text message; do
  printf "$text" > p
  validate 2 --policy p plain.qcow2
  grep -qF -- "--policy: p: $message" err
done <<'END'
foo = 1|line 1: unknown key: foo
snapshots = no|line 1: snapshots must be allow or refuse
\n\nmax-ratio = 1K|line 3: max-ratio must be a number
max-file-size = -1|line 1: max-file-size must be a number
zstd = allow\nbase = strict|line 2: base must be
zstd|line 1: not KEY = VALUE
END
validate 2 --policy none plain.qcow2
validate 2 -
validate 2 --policy upload --check quick -
validate 2 --policy upload - -

# --- what else is done ---

# What the header names is read by the plugin.
cp snapshot.qcow2 h.qcow2
at=$(od -An -tu8 --endian=big -j64 -N8 h.qcow2 | tr -d ' ')
header_patch h.qcow2 $((at + 36)) I 4096
validate 1 --policy upload h.qcow2
[ "$(codes)" = unsupported ]
# After a policy the steps that are asked for, without trust.
validate 0 --policy upload --check quick --no-read plain.qcow2
[ "$(grep -c '^ok' out)" = 2 ]
validate 1 --policy upload --check quick backing.qcow2 plain.qcow2
[ "$(grep -Ec '^(not )?ok' out)" = 4 ]
validate 3 --policy upload nothing.qcow2
validate 3 --policy upload scratch

# A stream is refused before it ends, and also if it has no end.
validate 1 --policy upload - < <(cat backing.qcow2 /dev/zero)
[ "$(codes)" = backing-file ]
validate 1 --policy upload - < <(cat plain.qcow2 /dev/zero)
[ "$(codes)" = file-size ]
printf 'max-file-size = none\n' > p
validate 3 --policy p --timeout 1 - < <(cat plain.qcow2 /dev/zero)
grep 'the stream did not arrive within 1 seconds' out
validate 3 --policy p --timeout 1 - < <(cat plain.qcow2; exec sleep 100)

# All steps use the file that was judged: its name is followed once.
requires strace -f -e trace=network true
for steps in "" "--check full" "--check quick --no-read --fsck"; do
  # shellcheck disable=SC2086
  strace -f -qq -o trace -e trace=file \
    "$abs_top_builddir/img/nbdkit-qcow2-img" validate --policy upload --json results.json \
    $steps plain.qcow2
  [ "$(grep -c 'plain.qcow2' trace)" = 2 ]      # execve, and openat
  if grep -E '/(dev|self)/fd' results.json; then fail "this is not its name"; fi
done

# --- bounds ---

# No other file, and no connection.
for image in backing uri data data-name; do
  strace -f -qq -o trace -e trace=open,openat,connect \
    "$abs_top_builddir/img/nbdkit-qcow2-img" validate --policy all $image.qcow2 > out || :
  grep -qF "$image.qcow2\"" trace
  if grep -E '/plain\.|connect\(' trace; then fail "$image: opened something else"; fi
done

# Memory: the largest cluster full of extensions, and the longest lists.
make_image h.qcow2 1M cluster_size=2M
"$python" - <<'PY'
import struct
with open("h.qcow2", "r+b") as f:
    f.seek(112)
    f.write(struct.pack(">II", 0x12345678, 0) * (((2 << 20) - 112) // 8))
PY
cp snapshot.qcow2 n.qcow2
"$python" - <<'PY'
import struct
with open("n.qcow2", "r+b") as f:
    f.seek(40)
    l1, = struct.unpack(">Q", f.read(8))
    f.seek(60)
    f.write(struct.pack(">IQ", 256, 8 << 20))
    f.seek(8 << 20)
    for i in range(256):
        f.write(struct.pack(">QIHHIIQII", l1, 1, 65535, 65535, 0, 0, 0, 0, 16) +
                struct.pack(">QQ", 0, 1 << 20) + b"\xff" * 131070 + bytes(2))
PY
for image in h n; do
  "$python" - "$abs_top_builddir/img/nbdkit-qcow2-img" $image.qcow2 <<'PY'
import resource, subprocess, sys
program, image = sys.argv[1:]
p = subprocess.run([program, "validate", "--policy", "upload", image],
                   stdout=subprocess.DEVNULL)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(image, p.returncode, peak, "KiB")
assert p.returncode in (0, 1) and peak < 64 << 10
PY
done

# --- what others say ---

rm -rf pipes
mkdir hostile pipes
for i in plain old backing extended luks snapshot bitmap data; do
  cp $i.qcow2 hostile/$i.good
done
make_image hostile/small.good 1M cluster_size=512
oslo="${OSLO_PYTHON:-$python}"
"$python" "$srcdir/lib/hostile.py" make hostile "${HOSTILE:-100}"
validate 1 --policy upload hostile/h*
mv results.json files.json
set +x
for f in hostile/h*; do
  mkfifo "pipes/${f##*/}"
  cat "$f" > "pipes/${f##*/}" 2>/dev/null &
done
set -x
validate 1 --policy upload pipes/*
mv results.json streams.json
"$oslo" "$srcdir/lib/hostile.py" judge files.json streams.json hostile/h*
