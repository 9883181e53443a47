#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# lab/bench, with disks and times too small for meaningful results: all figures are
# there and plausible, and nothing is left behind.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires fio --enghelp=nbd
requires gnuplot --version

out="$tmp/out"
export NBDKIT
bench ()
{
  rm -rf "$out"
  "$srcdir/../lab/bench" --plugin "$PLUGIN" --out "$out" \
    --size 16M --seconds 0.1 --rounds 1 --noise 99999 "$@"
}

bench --quick --cases 2,6
cat "$out/table.txt"

# Results and plots; the images are gone.
for f in "$out"/*; do
  case "${f##*/}" in
    table.txt|results.json) ;;
    case-2.svg|case-6.svg|curve-6-*.svg) "$python" - "$f" <<'PY'
import sys, xml.dom.minidom
assert xml.dom.minidom.parse(sys.argv[1]).documentElement.tagName == "svg"
PY
      ;;
    *) fail "left behind: $f" ;;
  esac
done
ls "$out"/case-2.svg "$out"/case-6.svg "$out"/curve-6-random-read-4k-depth-16.svg

"$python" - "$out/results.json" <<'PY'
import json, sys

results = json.load(open(sys.argv[1]))
assert results["machine"]["cpus"] >= 1
assert results["size_bytes"] == 16 << 20
assert [c["case"] for c in results["cases"]] == [2, 6]
measured = 0
for case in results["cases"]:
    rows = [r for g in case["groups"] for r in g["rows"]]
    assert rows
    for row in rows:
        if "" in row.get("skipped", {}):
            # A feature that is not there.
            assert "qcow2_" in row["skipped"][""], row
            assert not row["samples"], row
            continue
        assert not row.get("skipped"), row
        # What fio, nbdcopy and /proc say lies between these on any machine.
        low, high = {"IOPS": (1, 1e7), "MiB/s": (0.1, 1e6), "s": (1e-5, 300),
                     "MiB": (1, 2000)}[row["unit"]]
        for kind in "limit", "qemu", "plugin":
            assert low < row["median"][kind] < high, (kind, row)
            assert len(row["samples"][kind]) == 1
        # The limit is measured twice.
        assert row["unit"] == "MiB" or row["self"]["turns"] == 1, row
        for kind in "limit", "qemu":
            r = row["ratio"][kind]
            ours, theirs = row["median"]["plugin"], row["median"][kind]
            expected = ours / theirs if row["better"] == "more" else theirs / ours
            assert r["low"] <= r["median"] <= r["high"], row
            assert abs(r["median"] / expected - 1) < 1e-9, row
        # What flattens has ended when it could be asked.
        if row["unit"] != "MiB" and not row["name"].startswith("flatten"):
            assert row["peak_rss_bytes"]["plugin"] > 1 << 20, row
        measured += 1
assert measured >= 8, measured
PY

# Images that come from another server.
bench --quick --cases 11 --rows 'random read.* 1 ms|first read.* 0 ms'
"$python" - "$out/results.json" <<'PY'
import json, sys

rows = [r for c in json.load(open(sys.argv[1]))["cases"]
        for g in c["groups"] for r in g["rows"]]
assert len(rows) >= 3 and len({r["unit"] for r in rows}) == 2, rows
for row in rows:
    assert not row.get("skipped"), row
    assert all(row["median"][kind] > 0 for kind in ("limit", "qemu", "plugin")), row
    # Nobody reads faster than the link answers.
    if "random read 4K, depth 64, 1 ms" in row["name"]:
        assert all(v < 64000 for v in row["median"].values()), row
PY

# Commands, which are compared with qemu-img.
bench --quick --cases 12
"$python" - "$out/results.json" <<'PY'
import json, sys

rows = [r for c in json.load(open(sys.argv[1]))["cases"]
        for g in c["groups"] for r in g["rows"]]
assert len(rows) >= 10, rows
for row in rows:
    if "" not in row.get("skipped", {}):
        assert not row.get("skipped") and row["unit"] == "s", row
        assert row["ratio"]["qemu"]["turns"] == 1 and "limit" not in row["median"], row
PY

# Copies through servers, and by commands.
bench --cases 13 --rows ', sparse'
"$python" - "$out/results.json" <<'PY'
import json, sys

rows = [r for c in json.load(open(sys.argv[1]))["cases"]
        for g in c["groups"] for r in g["rows"]]
assert len(rows) == 6, rows
for row in rows:
    kinds = {"limit", "qemu", "plugin"} if row["unit"] == "MiB/s" else {"qemu", "plugin"}
    assert not row.get("skipped") and set(row["median"]) == kinds, row
PY

# Writes over layers, and one request at a time: rows that --quick leaves out.
bench --cases 6,7 --rows 'write 64K.* 10 layers|zstd.* 1M, .*depth 1$'
"$python" - "$out/results.json" <<'PY'
import json, sys

rows = [r for c in json.load(open(sys.argv[1]))["cases"]
        for g in c["groups"] for r in g["rows"]]
assert len(rows) == 2, rows
for row in rows:
    if "" not in row.get("skipped", {}):
        assert len(row["median"]) == 3, row
PY

# Only some rows, and those that they are compared with.
bench --quick --cases 1,6 --rows '100 layers' --servers plugin
"$python" - "$out/results.json" <<'PY'
import json, sys

names = [r["name"] for c in json.load(open(sys.argv[1]))["cases"]
         for g in c["groups"] for r in g["rows"]]
assert "time to the first read, 100 layers" in names, names
assert all("100 layers" in n for n in names), names
PY

# Another build of the plugin, on the same images: each is loaded in its turn.
mkdir "$tmp/old"
cp "$PLUGIN" "$tmp/old/nbdkit-qcow2-plugin.so"
cat > "$tmp/nbdkit" <<END
#!/bin/sh
echo "\$*" >> "$tmp/commands"
exec "$NBDKIT" "\$@"
END
chmod +x "$tmp/nbdkit"
NBDKIT="$tmp/nbdkit" bench --quick --cases 1,3 --servers plugin --rounds 2 \
  --rows '1 x depth 1$|^create' --before "$tmp/old/nbdkit-qcow2-plugin.so"
grep -q 'to before$' "$out/table.txt"
"$python" - "$out/results.json" "$tmp" "$PLUGIN" <<'PY'
import json, sys

results, tmp, plugin = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
rows = [r for c in results["cases"] for g in c["groups"] for r in g["rows"]]
assert results["before"]["name"] == "qcow2", results["before"]
assert len(rows) == 2 and {r["better"] for r in rows} == {"more", "less"}, rows
for row in rows:
    ours, theirs = row["samples"]["plugin"], row["samples"]["before"]
    assert len(ours) == len(theirs) == 2 and not row.get("skipped"), row
    better = [a / b if row["better"] == "more" else b / a for a, b in zip(ours, theirs)]
    assert abs(row["ratio"]["before"]["median"] - sum(better) / 2) < 1e-9, row
commands = [line.split() for line in open(tmp + "/commands")]
for what in "-f", "create=":
    used = [next(word for word in words if word.endswith("plugin.so"))
            for words in commands if any(word.startswith(what) for word in words)]
    old = tmp + "/old/nbdkit-qcow2-plugin.so"
    assert len(used) == 4 and used.count(old) == 2, (what, used)
PY

# With a parameter, and without.
bench --quick --cases 15 --servers plugin --rows random
"$python" - "$out/results.json" <<'PY'
import json, sys

rows = [r for c in json.load(open(sys.argv[1]))["cases"]
        for g in c["groups"] for r in g["rows"]]
assert len(rows) == 4 and all(r["median"]["plugin"] > 0 for r in rows), rows
assert [r["name"].endswith(", durable") for r in rows] == [False, True] * 2, rows
PY

# What differs much is measured more often; of many turns the table shows the middle half.
bench --cases 1 --rows '1 x depth 1$' --rounds 2 --servers limit,plugin
"$python" - "$out/results.json" <<'PY'
import json, statistics, sys

row, = [r for c in json.load(open(sys.argv[1]))["cases"]
        for g in c["groups"] for r in g["rows"]]
ours, theirs = row["samples"]["plugin"], row["samples"]["limit"]
assert len(ours) == len(theirs) == 10, row
r, q = row["ratio"]["limit"], sorted(a / b for a, b in zip(ours, theirs))
assert r["turns"] == 10 and r["median"] == statistics.median(q), row
assert q[0] <= q[2] <= r["low"] <= r["median"] <= r["high"] <= q[7], row
PY
grep -q '1 x depth 1 .*\[.*\.\..*\]' "$out/table.txt"
rm -r "$out"

# Equal servers that differ make a row worthless.
bench --cases 1 --rows '1 x depth 1$' --servers limit,plugin --noise 0.0000001
grep -q 'no figure: .*1 x depth 1: equal servers differed' "$out/table.txt"
"$python" - "$out/results.json" <<'PY'
import json, sys

row, = [r for c in json.load(open(sys.argv[1]))["cases"]
        for g in c["groups"] for r in g["rows"]]
assert row["noisy"] == row["self"]["median"] and row["self"]["turns"] == 5, row
PY
rm -r "$out"

# What can't be is refused before anything is done.
for wrong in "--cases 16" "--rounds 0" "--servers nbd" "--size 1" "--no-such" \
             "--rows no-such" "--before file" "--servers qemu --before $PLUGIN"; do
  # shellcheck disable=SC2086
  if bench $wrong; then fail "accepted: $wrong"; fi
  [ -z "$(ls "$out" 2>/dev/null)" ]
done
if PLUGIN="file" bench; then fail "took another plugin"; fi

# child_of PID NAME: a process of that name that PID has started.
child_of ()
{
  local f

  for f in /proc/[0-9]*/status; do
    awk -v parent="$1" -v name="$2" '
      $1 == "Name:" { n = $2 } $1 == "Pid:" { p = $2 }
      $1 == "PPid:" { if ($2 == parent && n == name) print p }' "$f" 2>/dev/null || :
  done
}

# Interrupted, it takes its servers and files with it.
NBDKIT="$NBDKIT" "$srcdir/../lab/bench" --plugin "$PLUGIN" --out "$out" \
  --size 16M --seconds 60 --cases 1 --servers plugin &
pid=$!
helper_pids+=("$pid")
serves ()
{
  # (The first one only says what the plugin can.)
  server="$(child_of "$pid" "$(basename "$NBDKIT")")"
  [ -n "$server" ] && sock="$(tr '\0' '\n' < "/proc/$server/cmdline" | sed -n '/^-U$/{n;p}')" &&
    [ -n "$sock" ] && listens "$sock"
}
await -p "$pid" serves
kill -TERM "$pid"
wait "$pid" && fail "an interrupted run succeeded"
helper_pids=()
if kill -0 "$server" 2>/dev/null; then fail "a server survived"; fi
[ -z "$(ls "$out")" ]
