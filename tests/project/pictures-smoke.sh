#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# lab/pictures, with disks and times too small for meaningful results: each picture is
# there, with all servers and what has been published, and nothing is left behind.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires fio --enghelp=nbd
requires gnuplot --version

out="$tmp/out"
work="$tmp/work"
cd "$tmp"
mkdir "$work"
pictures ()
{
  rm -rf "$out"
  NBDKIT="$NBDKIT" "$srcdir/../lab/pictures" --plugin "$PLUGIN" --out "$out" \
    --work "$work" --quick --size 16M --seconds 0.1 --rounds 1 "$@"
}

# try NAME SERVERS PROGRAM...: adds a picture that not every machine can measure.
names=(cache slices clusters chain) skipped=()
try ()
{
  local name="$1" servers="$2" program
  shift 2

  : > "table.$name"
  for program; do
    command -v "$program" || { skipped+=("$name: no $program"); return; }
  done
  if pictures --servers "$servers" "$name" > "table.$name" 2> said; then
    names+=("$name")
  else
    cat said
    # One line, and only about what the machine lacks.
    grep "^pictures: $name: needs " said
    [ ! -s "table.$name" ] && [ -z "$(ls "$out")" ]
    skipped+=("$(sed 's/^pictures: //' said)")
  fi
  cp -r "$out/." all
}

mkdir all
try rocksdb qemu,plugin db_bench nbdfuse fusermount3 losetup mke2fs mount
try pause qemu,plugin qemu-storage-daemon
if [ -e "$srcdir/../build/guest/lib" ]; then
  # One boot less: it is not another way than the plugin's.
  try guest plugin qemu-system-x86_64 busybox cpio mke2fs bonnie++
else
  skipped+=("guest: no kernel in build/guest: scripts/test puts it there")
fi
pictures cache slices clusters chain > table
cp -r "$out/." all
cat table.* >> table
cat table
[ -z "$(ls -A "$work")" ]

"$python" - all table "${names[@]}" <<'PY'
import os, re, sys, xml.dom.minidom

# What has to be written in each.
texts = {
    "cache": ["qemu-nbd", "plugin", "random reads of 4K per second", "100G"],
    "slices": ["qemu-nbd, 4K", "plugin, 4K", "published, 64K, 20 GB",
               "part of the tables for which the cache has room"],
    "clusters": ["qemu-img, full", "plugin, full", "published, full", "cluster size",
                 "seconds"],
    "chain": ["qemu-nbd", "plugin", "published, memory", "layers", "MiB"],
    "rocksdb": ["qemu-nbd", "plugin", "published, against QEMU", "1 layer", "20 layers",
                "keys per second"],
    "guest": ["QEMU itself", "plugin", "compressed", "dd, reading what it wrote",
              "MiB per second", "(TCG)"],
    "pause": ["qemu-storage-daemon", "plugin", "internal snapshot, deleted",
              "answers per millisecond"],
}
out, table, names = sys.argv[1], open(sys.argv[2]).read(), sys.argv[3:]
assert sorted(os.listdir(out)) == sorted("picture-%s.svg" % n for n in names), out
for name in names:
    wanted = texts[name]
    document = xml.dom.minidom.parse(os.path.join(out, "picture-%s.svg" % name))
    assert document.documentElement.tagName == "svg"
    words = ["".join(n.data for n in t.childNodes if n.nodeType == n.TEXT_NODE).strip()
             + "".join(c.firstChild.data for c in t.getElementsByTagName("tspan")
                       if c.firstChild)
             for t in document.getElementsByTagName("text")]
    for text in wanted:
        assert any(text in w for w in words), (name, text, words)

# Each line of the tables has figures of both servers, or of QEMU and the plugin.
rows = re.findall(r"^  (.*?) {2,}(\S+) +(\S+) +(\S+) (IOPS|keys/s|MiB/s|MiB|s) ", table,
                  re.M)
assert len(rows) >= 15, rows
for name, limit, qemu, ours, unit in rows:
    theirs = limit if ": dd, " in name else qemu
    assert float(theirs.replace(",", "")) > 0 and float(ours.replace(",", "")) > 0, name
assert "no figure" not in table and "FAILED" not in table, table
PY

# An image whose clusters trade places is in order, and they lie elsewhere.
qemu-img create -q -f qcow2 -o preallocation=metadata mixed.qcow2 3000M
qemu-img map --output=json mixed.qcow2 > before.json
PYTHONPATH="$srcdir/../lab/bench.d" "$python" -B -c \
  'import images; images.mix("mixed.qcow2")'
check_clean mixed.qcow2
qemu-img map --output=json mixed.qcow2 > after.json
[ "$(wc -l < after.json)" -gt $((20 * $(wc -l < before.json))) ]

# What can't be is refused before anything is done.
for wrong in no-such "--rounds 0" "--servers nbd" "--size 1" "--no-such"; do
  # shellcheck disable=SC2086
  if pictures cache $wrong; then fail "accepted: $wrong"; fi
  [ -z "$(ls "$out" 2>/dev/null)" ]
done
if PLUGIN="file" pictures cache; then fail "took another plugin"; fi

# What could not be measured here must not look as if it had been.
[ ${#skipped[@]} -eq 0 ] || skip "$(printf '%s; ' "${skipped[@]}")"
