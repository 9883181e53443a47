#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# lab/comparison, with disks and times too small for meaningful results: each rival has a
# figure or a reason, ratios and losses are what the samples say, and who answers with
# other bytes has no figure.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires fio --enghelp=nbd
requires gnuplot --version
requires qemu-storage-daemon --version

cd "$tmp"
export NBDKIT
out="$tmp/out"
comparison ()
{
  rm -rf "$out"
  "$srcdir/../lab/comparison" --plugin "$PLUGIN" \
    --core "$(realpath --relative-to=. "$abs_top_builddir/tests/bench/comparison")" \
    --out "$out" --systems here --no-libraries --quick --size 16M --seconds 0.05 "$@"
}

comparison --help | grep -e --rounds > /dev/null || fail "no help"

# Who there is, and who is not.
comparison --list --missing 'trixie=no such mirror' | tee list
for program in qemu-nbd qemu-storage-daemon; do
  for aio in threads io_uring; do
    grep -Eq "^  $program [0-9.]+ $aio" list || fail "not there: $program $aio"
    grep -q "^  $program of trixie $aio: not here: no such mirror\$" list ||
      fail "nothing about trixie's $program $aio"
  done
done
grep -q '^  nbdkit of trixie qcow2dec: not here: no such mirror$' list
for library in imago qcow2-rs go-qcow2reader go-qcow2; do
  grep -q "^  $library: not here: --no-libraries" list || fail "not there: $library"
done
[ ! -e "$out" ] || fail "left behind: $out"

comparison --rounds 2 --missing 'trixie=no such mirror' --rows \
  '^(random (read 4K, 1 x 1|rewrite 4K, 4|write)|read (1M|zlib)|in process: .*4K, 16)' \
  > printed
cat "$out/table.txt"
for f in "$out"/*; do
  case "${f##*/}" in
    table.txt|results.json|comparison.svg) ;;
    *) fail "left behind: $f" ;;
  esac
done
"$python" - "$out" <<'PY'
import json, statistics, sys, xml.dom.minidom

out = sys.argv[1]
results = json.load(open(out + "/results.json"))
text = open(out + "/table.txt").read()
assert xml.dom.minidom.parse(out + "/comparison.svg").documentElement.tagName == "svg"

nbd, process = results["parts"]
rivals = {r["name"]: r["missing"] for r in nbd["rivals"]}
here = [n for n, missing in rivals.items() if missing is None]
assert here[0] == "plugin" and len(here) >= 4, here
for row in nbd["rows"]:
    assert row["median"]["plugin"] > 0, row
    # It is measured twice with each group of rivals.
    assert row["self"]["turns"] >= 2, row
    for name in here:
        if name in row["missing"]:
            # (Raw files are not compressed.)
            assert "z" in row["name"] and name.endswith(" file"), row
            continue
        samples = row["samples"][name]
        assert len(samples) >= 1, row
        assert statistics.median(v for v, _ in samples) == row["median"][name], row
        if name != "plugin":
            ratio = statistics.median(ours / theirs for theirs, ours in samples)
            r = row["ratio"][name]
            assert r["low"] <= r["median"] <= r["high"], row
            assert abs(r["median"] - ratio) < 1e-9, row
            # Losses are marked, and listed; nothing else is.
            lost = [l for l in text.splitlines()
                    if l.startswith("  " + row["name"] + " ") and name in l]
            assert (ratio < 1) == (len(lost) == 1), (row, lost)
    for name, why in rivals.items():
        if why:
            assert row["missing"][name] == why, row
assert len(nbd["rows"]) == 7, [r["name"] for r in nbd["rows"]]
assert "Not measured:\n" in text
assert "qemu-nbd of trixie io_uring: no such mirror" in text

assert len(process["rows"]) == 4, [r["name"] for r in process["rows"]]
for row in process["rows"]:
    assert row["median"]["plugin's core"] > 0 and not row["ratio"], row
PY
diff <(grep -v '/out: ' printed | sed '/^$/d') <(sed '/^$/d' "$out/table.txt")

# Equal servers that differ make a row worthless.
comparison --rounds 1 --rows '^random read 4K, 1 x 1$' --only '^nbdkit' --noise 0.0000001
sed -n '/^No figure, because/,/^$/p' "$out/table.txt" | grep -x '  random read 4K, 1 x 1'

# A daemon that serves something else.
mkdir fake
cat > fake/qemu-storage-daemon <<END
#!/bin/sh
for arg; do
  case "\$arg" in
    --version) echo "qemu-storage-daemon version 99.9"; exit ;;
    addr.*) exec "$NBDKIT" -f -U "\${arg##*addr.path=}" memory 16M ;;
  esac
done
END
chmod +x fake/qemu-storage-daemon
PATH="$PWD/fake:$PATH" comparison --rounds 1 --rows '^random read 4K, 1 x 1$' \
  --only 'daemon 99'
grep -Eq '^  qemu-storage-daemon 99.9 threads +- +\(wrong bytes' "$out/table.txt" ||
  fail "another disk has a figure"

# All of nbdkit's servers get the threads that were asked for, and no other does.
cat > fake/nbdkit <<END
#!/bin/sh
echo "\$*" >> "$PWD/commands"
exec "$NBDKIT" "\$@"
END
chmod +x fake/nbdkit
NBDKIT="$PWD/fake/nbdkit" comparison --threads 3 --rounds 1 \
  --rows '^random read 4K, 1 x 1$' \
  --only '^nbdkit'
grep -x 'nbdkit -t 3' "$out/table.txt"
grep -- '^-f -U' commands | tee served
for disk in 'pool.raw' 'disk.qcow2'; do
  grep -q -- "-t 3 .*$disk" served || fail "not served with 3 threads: $disk"
done
if grep -v -- ' -t 3 ' served; then fail "with other threads"; fi

# What can't be is refused before anything is done.
sockets () { find /tmp -maxdepth 1 -name 'comparison.*' | sort; }
sockets > before
for wrong in '--rounds 0' '--threads 0' '--size 1M' '--systems sarge' \
             '--rows no-such' '--only no-such' more; do
  # shellcheck disable=SC2086
  if comparison $wrong; then fail "accepted: $wrong"; fi
done
sockets | diff before - || fail "left behind in /tmp"
