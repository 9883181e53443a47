#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# lab/soak, for a few seconds: all tracks find no fault, and count what they did;
# there are curves, and nothing else is left behind.  If data is lost, it fails at once,
# keeps the files, and the command that it prints fails again.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version
requires gnuplot --version

# The names of the sockets must be short.
out="$tmp/out"
export TMPDIR="$sockdir/w"
mkdir "$TMPDIR"
soak ()
{
  rm -rf "$out"
  NBDKIT="${nbdkit:-$NBDKIT}" "$srcdir/../lab/soak" --plugin "$PLUGIN" \
    --out "$out" "$@"
}

soak 0.3
[ -z "$(ls "$TMPDIR")" ]
[ "$(cd "$out" && echo *)" = "log.txt samples.jsonl soak.svg totals.json" ]
"$python" - "$out" <<'PY'
import json, sys, xml.dom.minidom

out = sys.argv[1]
totals = json.load(open(out + "/totals.json"))
assert totals["generations"] >= 3 and totals["requests"] > 300, totals
assert totals["images judged"] >= 10 and totals["ended: kill"] >= 1, totals
samples = [json.loads(line) for line in open(out + "/samples.jsonl")]
# (On a busy machine a server may be gone before it is looked at.)
assert "house" in {s["track"] for s in samples} <= {"lives", "far", "house"}
for s in samples:
    assert s["rss"] > 1 << 20 and s["threads"] > 0, s
assert max(s["size"] for s in samples) > 1 << 20
assert max(s["fds"] for s in samples) > 8
svg = xml.dom.minidom.parse(out + "/soak.svg").documentElement
assert svg.tagName == "svg" and len(svg.getElementsByTagName("path")) > 10
PY

# A host that loses what it was told to keep: when QEMU looks, all is as when the server
# was started.
mkdir "$tmp/bin"
cat > "$tmp/forgets" <<EOS
#!/bin/bash
case "\$*" in *--run*) ;; *qcow2-plugin.so*)
  for f in "$TMPDIR"/*/*/image/{top.qcow2,export,disks/*.qcow2}; do
    if [ -e "\$f" ]; then cp "\$f" "\$f.old"; fi
  done ;;
esac
exec "$NBDKIT" "\$@"
EOS
cat > "$tmp/bin/qemu-img" <<EOS
#!/bin/bash
case "\$1" in check)
  for f in "$TMPDIR"/*/*/image/{top.qcow2,export,disks/*.qcow2}; do
    case "\$*" in *"\$f"*) cp "\$f.old" "\$f" ;; esac
  done ;;
esac
exec "$(command -v qemu-img)" "\$@"
EOS
chmod +x "$tmp"/forgets "$tmp"/bin/*
for track in lives far house; do
  if PATH="$tmp/bin:$PATH" nbdkit="$tmp/forgets" \
       soak --only "$track" 5 > "$tmp/forgot"; then
    fail "$track: no error"
  fi
  cat "$tmp/forgot"
  # (A bitmap that is gone is missed when it is to be read.)
  what="(after a c|closed).*(may be|expected|check)|no export named 'bitmap:"
  grep -Eq "^FAILED: $track:.*($what)" "$tmp/forgot"
  [ -n "$(ls "$out/failed/$track/image")" ]
  [ -z "$(ls "$TMPDIR")" ]
done
# As it says, in another place.
again="$(sed -n 's/^    lab\/soak //p' "$tmp/forgot")"
# shellcheck disable=SC2086
if PATH="$tmp/bin:$PATH" nbdkit="$tmp/forgets" \
     soak $again > "$tmp/forgot.again"; then fail "no error"; fi
cat "$tmp/forgot.again"
seed="$(sed -n 's/,.*//; /^SEED=/p' "$tmp/forgot")"
grep "^$seed," "$tmp/forgot.again"

# What it refuses.
for wrong in 0 -1 nan '--only none' '--only lives:x' '--no-such'; do
  # shellcheck disable=SC2086
  if soak $wrong; then fail "accepted: $wrong"; fi
  [ ! -e "$out" ]
done

# Interrupted, it takes its servers and files with it.
rm -rf "$out"
NBDKIT="$NBDKIT" "$srcdir/../lab/soak" --plugin "$PLUGIN" --out "$out" 5 &
pid=$!
helper_pids+=("$pid")
# (Tracks also end servers.)
all_serve ()
{
  servers="$(cat "$TMPDIR"/*/*/image/server.pid 2>/dev/null)" &&
    [ "$(wc -w <<< "$servers")" = 3 ]
}
await -p "$pid" all_serve
kill -TERM "$pid"
wait "$pid" && fail "an interrupted run succeeded"
helper_pids=()
# gone PID: killed.  (Its parent is dead, and does not wait for it.)
gone ()
{
  ! grep -q '^State:.[^XZ]' "/proc/$1/status" 2>/dev/null
}
for server in $servers; do await gone "$server"; done
[ -z "$(ls "$TMPDIR")" ]
