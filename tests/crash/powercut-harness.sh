#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# lab/powercut, small: whenever the power is cut, nothing that the plugin's clients
# flushed is lost, no sector contains what was never written there, and no image is
# corrupt.  Of servers that lie about flushes it says so, and fails if one of them is the
# plugin.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-nbd --version
requires_filter fua

export NBDKIT TMPDIR="$sockdir"
programs="$abs_top_builddir/tests/powercut"

# powercut OPTION...
powercut ()
{
  "$srcdir/../lab/powercut" --plugin "$PLUGIN" --programs "$programs" --rounds 1 \
    --json "$tmp/counts.json" "$@"
}

# says LINE: it was all that the last one wrote to stderr.
says ()
{
  grep -v '^+' "$tmp/said" | diff - <(echo "$1")
}

# judged EXPRESSION: is it true of the counts C of every server and workload?
judged ()
{
  "$python" - "$tmp/counts.json" "$1" <<'PY'
import json, sys
for name, servers in json.load(open(sys.argv[1]))["workloads"].items():
    for server, c in servers.items():
        assert eval(sys.argv[2]), (name, server, c)
PY
}

powercut --server plugin --requests 60 --cuts 40 --asked 2 | tee "$tmp/out"
judged 'c["cuts"] > 5 and c["qemu"] + c["entries"] > 50'
judged 'all(c[k] == [0, 0]
            for k in ("lost", "snapshot", "older", "foreign", "torn", "trimmed"))'
judged 'c["corrupt"] == c["corrupt_later"] == c["suspect"] == 0'
[ "$(grep -c ' plugin ' "$tmp/out")" = 7 ]

# Flushes that do nothing; QEMU without its own syncs is corrupt then.
status=0
powercut --server 'plugin --filter=fua fuamode=discard' \
  --server 'qemu-nbd --cache=unsafe' --workloads database --requests 60 --cuts 60 \
  2> "$tmp/said" || status=$?
[ "$status" = 1 ]
says "powercut: the plugin has violations"
judged 'c["lost"][0] > 0'
judged '"qemu" not in server or c["corrupt"] > 0'
# What is expected of others is not a failure.
powercut --server 'qemu-nbd --cache=unsafe' --workloads database --requests 60 --cuts 60
judged 'c["lost"][0] > 0'

# The same seed makes the same requests, and so the same counts for the same journal.
powercut --server plugin --workloads trim --requests 20 --cuts 10 --seed 7 --keep \
  --work "$tmp/kept" | grep '^SEED=7$'
cd "$tmp/kept/trim.0.0"
for n in 1 2; do
  "$programs/judge" journal before.qcow2 disk.qcow2 7 40 0 > "$tmp/judged.$n"
done
cmp "$tmp/judged.1" "$tmp/judged.2"
cd "$tmp"

# A server that somebody else starts and stops.
sock="$sockdir/s"
powercut --server "nbd+unix:///?socket=$sock" --workloads no-flush --requests 20 \
  --cuts 20 > "$tmp/out" &
helper_pids+=($!)
# await_line TEXT
await_line ()
{
  await -p "${helper_pids[0]}" grep -q "$1" "$tmp/out" ||
    fail "no '$1': $(cat "$tmp/out")"
}
await_line 'Waiting until it answers'
environment="$(sed -n 's/^ *\(LD_PRELOAD=\)/\1/p' "$tmp/out")"
image="$(sed -n 's/.* POWERCUT_IMAGE=\([^ ]*\) .*/\1/p' <<< "$environment")"
# shellcheck disable=SC2086
env $environment "$NBDKIT" -f -U "$sock" "$PLUGIN" file="$image" &
server_pid[own]=$!
await_line 'Stop it now'
stop_own ()
{
  kill -TERM "${server_pid[own]}"
  wait "${server_pid[own]}"
  unset "server_pid[own]"
}
stop_own
wait "${helper_pids[0]}"
helper_pids=()
judged 'c["cuts"] > 0 and c["lost"] == c["foreign"] == [0, 0] and c["corrupt"] == 0'

# What it refuses.
for wrong in '--server nbd' '--workloads none' '--rounds 0' '--programs /nowhere' \
  '--no-such'
do
  # shellcheck disable=SC2086
  if powercut $wrong; then fail "$wrong: no error"; fi
done
if powercut --work "$tmp" 2> "$tmp/said"; then fail "--work: no error"; fi
says "powercut: --work: $tmp exists; name a new directory"
# Interrupted, in a round: one line, and it leaves nothing.  (bash lets processes in the
# background ignore Control-C.)
"$python" -c '
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
os.execvp(sys.argv[1], sys.argv[1:])' "$srcdir/../lab/powercut" --plugin "$PLUGIN" \
  --programs "$programs" --server plugin --requests 100000 > "$tmp/out" 2> "$tmp/said" &
helper_pids+=($!)
await -p $! compgen -G "$sockdir/powercut.*/database.0.0/server.log"
kill -INT "${helper_pids[0]}"
status=0
wait "${helper_pids[0]}" || status=$?
helper_pids=()
[ "$status" = 130 ]
says "powercut: interrupted"
# io_uring cannot be recorded.  (Where it is not allowed, qemu-nbd does not start.)
if powercut --server 'qemu-nbd --aio=io_uring' --workloads trim --requests 20 \
     > "$tmp/out" 2>&1; then
  fail "io_uring was recorded"
fi
grep -E 'recording is not complete|server does not start' "$tmp/out"
[ -z "$(ls -d "$sockdir"/powercut.* 2>/dev/null)" ]
