#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# How check-report= and stats= write depends on the type of the existing file, not on its
# name: a regular file below /dev is replaced like any other, and a name that refers to a
# descriptor is written through it.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$tmp/a.qcow2"
make_image "$img" 1M

# report PLACE [PARAMETER...]: the image is checked, served, and the report is at PLACE.
report ()
{
  local place="$1"
  shift
  "$NBDKIT" -U - "$PLUGIN" "$img" check=quick check-report="$place" "$@" --run 'echo RUN'
}

# is_report FILE: one document, and a report.
is_report ()
{
  "$python" -c 'import json, sys
assert json.load(open(sys.argv[1]))["verdict"] == "clean"' "$1"
}

# Files below /dev.
shm=
if shm="$(mktemp -d /dev/shm/qcow2.XXXXXX)"; then
  trap 'ended=$?; set +e; rm -rf "$shm"; (exit "$ended"); cleanup' EXIT
  printf precious > "$shm/p"
  for key in check-report stats; do
    refused "$key=.*is not a report" "$img" check=quick "$key=$shm/p"
    [ "$(cat "$shm/p")" = precious ]
  done
  report "$shm/r"
  is_report "$shm/r"
  report "$shm/r"
  ln -s r "$shm/link"
  report "$shm/link"
  is_report "$shm/r"
  [ -L "$shm/link" ]
  ln -s "$shm/p" "$tmp/out"
  refused 'is not a report' "$img" check=quick check-report="$tmp/out"
  [ "$(cat "$shm/p")" = precious ]
  "$NBDKIT" -U - "$PLUGIN" "$img" stats="$shm/s" --run 'nbdinfo --size "$uri"'
  "$python" -c 'import json, sys
assert json.load(open(sys.argv[1]))["connections"]["ever"] > 0' "$shm/s"
  [ "$(echo "$shm"/*)" = "$shm/link $shm/p $shm/r $shm/s" ]
fi

# Through descriptors.  What is written to them later comes after the report.
for place in /dev/stdout /dev/fd/1 /proc/self/fd/1; do
  report "$place" > "$tmp/out"
  [ "$(tail -n 1 "$tmp/out")" = RUN ]
  head -n -1 "$tmp/out" > "$tmp/r"
  is_report "$tmp/r"
done
printf 'precious\n' > "$tmp/p"
report /dev/stdout >> "$tmp/p"
[ "$(head -n 1 "$tmp/p")" = precious ]
sed '1d;$d' "$tmp/p" > "$tmp/r"
is_report "$tmp/r"
: > "$tmp/r"
report /dev/fd/7 7<> "$tmp/r"
is_report "$tmp/r"
report /dev/fd/7 7> "$tmp/r"
is_report "$tmp/r"
printf precious > "$tmp/p"
exec 7<> "$tmp/p"
refused 'would overwrite' "$img" check=quick check-report=/dev/fd/7
exec 7< "$tmp/p"
refused 'cannot write' "$img" check=quick check-report=/dev/fd/7
refused 'cannot write' "$img" check=quick check-report=/dev/fd/987
exec 7>&-
[ "$(cat "$tmp/p")" = precious ]

# Pipes, with and without a name, and sockets.
mkfifo "$tmp/fifo"
cat "$tmp/fifo" > "$tmp/r" &
report "$tmp/fifo"
wait $!
is_report "$tmp/r"
report /dev/stdout | sed '$d' > "$tmp/r"
is_report "$tmp/r"
"$python" - "$NBDKIT" "$PLUGIN" "$img" > "$tmp/r" <<'PY'
import socket, subprocess, sys
ours, theirs = socket.socketpair()
subprocess.run([sys.argv[1], "-U", "-", sys.argv[2], sys.argv[3], "check=quick",
                "check-report=/dev/stdout", "--run", "true"], stdout=theirs, check=True)
theirs.close()
sys.stdout.write(ours.makefile().read())
PY
is_report "$tmp/r"

# Devices.
report /dev/null
refused 'cannot write' "$img" check=quick check-report=/dev/full
refused 'cannot be replaced' "$img" stats=/dev/null
refused 'cannot be replaced' "$img" stats=/dev/stdout
refused 'not a file, pipe or terminal' "$img" check=quick check-report="$tmp"
if mknod "$tmp/block" b 7 250; then
  refused 'not a file, pipe or terminal' "$img" check=quick check-report="$tmp/block"
  refused 'not a file, pipe or terminal' "$img" stats="$tmp/block"
fi
