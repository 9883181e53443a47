#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Where are the holes of a raw file on an NBD server?  A client that asks about many
# gigabytes waits for few questions to the server, whether the file is one large hole or
# has thousands of small ones; nbdkit-qcow2-img map does so too.  A client that asks for one
# extent makes the server tell about one.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-img --version
requires_filter log

truncate -s 1T "$tmp/sparse"
for at in 0 70M 3G 200G 1048575M; do
  printf data | dd of="$tmp/sparse" oflag=seek_bytes conv=notrunc status=none \
    seek="$(numfmt --from=iec "$at")"
done
"$python" - "$tmp/small" <<'PY'
import sys
with open(sys.argv[1], "wb") as f:
    for i in range(4000):
        f.seek(i << 17)
        f.write(b"x" * 4096)
    f.truncate(1 << 29)
PY

PLUGIN=file start_nbdkit_as far --filter=log -- dir="$tmp" logfile="$tmp/log"

# questions MOST WHAT: were there no more of them since this was last asked?
asked=0
questions ()
{
  local all n

  all="$(grep -c ' Extents id=.*\.\.\.$' "$tmp/log" || :)"
  n=$((all - asked))
  asked="$all"
  echo "$2: $n questions; at most $1"
  [ "$n" -le "$1" ] || fail "$2: too many questions"
}

far_uri ()
{
  echo "nbd+unix:///$1?socket=$sockdir/far.sock"
}

# An image over a raw file tells of the same holes as the file.
same_map ()
{
  local name="$1" most="$2"

  qemu-img create -q -f qcow2 -u -F raw -b "$(far_uri "$name")" "$tmp/$name.qcow2" \
    "$(file_size "$tmp/$name")"
  start_nbdkit -r -- "$tmp/$name.qcow2" allow-uri="nbd+unix:///?socket=$sockdir/far.sock"
  questions 100 "to open"
  nbdinfo --map "$uri" >"$tmp/ours"
  questions "$most" "$name with nbdinfo"
  stop_nbdkit
  nbdinfo --map "$(far_uri "$name")" >"$tmp/theirs"
  diff -u "$tmp/theirs" "$tmp/ours"

  asked="$(grep -c ' Extents id=.*\.\.\.$' "$tmp/log")"
  "$abs_top_builddir/img/nbdkit-qcow2-img" map --output=json "$tmp/$name.qcow2" \
    --allow-uri="nbd+unix:///?socket=$sockdir/far.sock" > "$tmp/map"
  questions "$most" "$name with map"
  "$python" - "$tmp" <<'PY'
import json, sys
def holes(entries):
    merged = []
    for start, length, hole in entries:
        if merged and merged[-1][2] == hole:
            merged[-1][1] += length
        else:
            merged.append([start, length, hole])
    return merged
ours = holes((e["start"], e["length"], e["zero"])
             for e in json.load(open(sys.argv[1] + "/map")))
words = [line.split() for line in open(sys.argv[1] + "/theirs")]
assert ours == holes((int(w[0]), int(w[1]), "zero" in w[3]) for w in words)
PY
}
same_map sparse 1100
same_map small 60

# One extent.
start_nbdkit -r -- "$tmp/small.qcow2" allow-uri="nbd+unix:///?socket=$sockdir/far.sock"
nbdsh_run -c - <<'PY'
def ask(count, offset, flags=nbd.CMD_FLAG_REQ_ONE):
    got = []
    h.block_status(count, offset, lambda c, o, e, err: got.extend(e), flags)
    return got
assert ask(1 << 28, 0) == [4096, 0]
assert ask(1 << 28, 4096) == [(1 << 17) - 4096, 3]
assert ask(1 << 28, (1 << 29) - (1 << 28)) == [4096, 0]
PY
if grep ' Extents id=.*\.\.\.$' "$tmp/log" | tail -n 3 | grep -v 'req_one=1'; then
  fail "the server was asked for more than one extent"
fi
stop_nbdkit
: >"$tmp/log"; asked=0
start_nbdkit -r -- "$tmp/sparse.qcow2" \
  allow-uri="nbd+unix:///?socket=$sockdir/far.sock"
qemu-img map -f raw --output=json "$uri" >/dev/null
questions 5000 "one hole with qemu-img"
