#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Snapshot tables designed to cost time and memory: thousands of snapshots, each with the
# largest L1 table, all of whose entries point to clusters; and names with control
# characters.  The server starts soon, uses little memory, and no name can forge a line of
# its messages.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"

# hostile SNAPSHOTS L1-ENTRIES STEP NAME: appends a table of snapshots whose L1 tables lie
# one after another with a distance of STEP clusters (so that they overlap), in an area
# that is full of entries.
hostile ()
{
  rm -f "$img"
  make_image "$img" 1G cluster_size=512
  "$python" - "$img" "$@" <<'PY'
import array, struct, sys
n, entries, step = (int(a) for a in sys.argv[2:5])
name = sys.argv[5].encode().decode("unicode_escape").encode("latin-1")
with open(sys.argv[1], "r+b") as f:
    f.seek(0, 2)
    tables = -(-f.tell() // 512) * 512
    area = array.array("Q", range(tables, tables + 512 * (4 << 20), 512))
    area.byteswap()
    f.seek(tables)
    f.write(area.tobytes())
    at = f.tell()
    for i in range(n):
        l1 = tables + i * step % 65536 * 512
        e = struct.pack(">QIHHIIQII", l1, entries, 1, len(name), 0, 0, 0, 0, 16)
        e += struct.pack(">QQ", 0, 1 << 30) + b"%d" % (i % 10) + name
        f.write(e + bytes(-len(e) % 8))
    f.seek(60)
    f.write(struct.pack(">IQ", n, at))
    # All that is named is in the file.
    f.truncate(3 << 30)
PY
}

# served_soon PARAMETER...: or refused, with one line; with less than 300 MB.
served_soon ()
{
  local status=0 peak

  "$python" - "${soon[@]}" "$NBDKIT" -U - "$@" --run 'nbdinfo --size "$uri"' \
    >"$tmp/out" 2>"$tmp/err" <<'PY' || status=$?
import resource, subprocess, sys
p = subprocess.run(sys.argv[1:])
print("PEAK", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(p.returncode)
PY
  tail -n 5 "$tmp/out" "$tmp/err"
  [ "$status" -eq 0 ] || [ "$status" -eq 1 ]
  [ "$(wc -l < "$tmp/err")" -le 2 ]
  peak=$(sed -n 's/^PEAK //p' "$tmp/out")
  [ "$peak" -lt 300000 ]
}

# For those who read, and for those who write.
hostile 65536 4194304 1 name
served_soon "$PLUGIN" "$img"
hostile 65536 1 1 name
served_soon -r "$PLUGIN" "$img"

# A name that moves the cursor, or forges a line: messages escape it.  The names of exports
# are what they are, for clients that ask for them.
for entries in 1 65536; do
  hostile 1 "$entries" 1 'a\x1b[2Jb\nnbdkit: error: forged'
  start_nbdkit file="$img"
  nbdinfo --list "$uri" || :
  if nbdinfo "nbd+unix:///a%1b%5b2Jc?socket=$sock"; then fail "served an unknown name"; fi
  nbdinfo "nbd+unix:///a%1b%5b2Jb%0anbdkit:%20error:%20forged?socket=$sock" || :
  stop_nbdkit
  [ -s "$tmp/main.log" ]
  if grep -aq $'\x1b' "$tmp/main.log"; then fail "a raw control character in a message"; fi
  if grep -a '^nbdkit: error: forged' "$tmp/main.log"; then fail "a forged line"; fi
done
