#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The file of log= can be moved away at any time, or copied and emptied, as logrotate does:
# no line is lost, and the next one is in a new file.  Lines of a server that starts are added
# to those that are there.  No file is touched that is something else.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/a.qcow2" 1M
count ()
{
  grep -c "\"event\": \"$1\"" "$2" || :
}
has_left ()
{
  [ "$(count disconnect "$1")" = "$2" ]
}
# client FILE N: a client comes and goes; FILE tells of N that have gone.
client ()
{
  nbdinfo --size "$uri"
  await has_left "$@"
}
start_nbdkit "$tmp/a.qcow2" log="$tmp/log" log-format=json
client "$tmp/log" 1
mv "$tmp/log" "$tmp/log.1"
client "$tmp/log" 1
client "$tmp/log" 2
[ "$(count connect "$tmp/log.1")" = 1 ]
[ "$(count connect "$tmp/log")" = 2 ]
cp "$tmp/log" "$tmp/log.2"
: > "$tmp/log"
client "$tmp/log" 1
[ "$(count connect "$tmp/log")" = 1 ]
# What takes its place and is no log stays as it is; the old file goes on.
mv "$tmp/log" "$tmp/log.3"
echo something else > "$tmp/log"
client "$tmp/log.3" 2
client "$tmp/log.3" 3
[ "$(count connect "$tmp/log.3")" = 3 ]
[ "$(cat "$tmp/log")" = "something else" ]
[ "$(grep -c 'error: log=' "${server_log[main]}")" = 1 ]
mv "$tmp/log.3" "$tmp/log"
stop_nbdkit
[ "$(count end "$tmp/log")" = 1 ]

start_nbdkit "$tmp/a.qcow2" log="$tmp/log" log-format=json
stop_nbdkit
[ "$(count start "$tmp/log")" = 1 ]
[ "$(count end "$tmp/log")" = 2 ]
PYTHONPATH="$srcdir/lib" "$python" -c 'import sys, events; events.read(sys.argv[1])' \
  "$tmp/log"

refused_untouched 'something else' "$tmp/a.qcow2" log="$tmp/a.qcow2"
for bytes in 2 '{' '2026-03-0' "$(head -c 512 /dev/urandom | base64)"; do
  printf %s "$bytes" > "$tmp/raw"
  refused 'something else' "$tmp/a.qcow2" log="$tmp/raw"
  [ "$(cat "$tmp/raw")" = "$bytes" ]
done
ln -s "$tmp/elsewhere" "$tmp/link"
refused 'a link to nothing' "$tmp/a.qcow2" log="$tmp/link"
[ ! -e "$tmp/elsewhere" ]
refused 'No such file' "$tmp/a.qcow2" log="$tmp/none/log"
refused 'requires log=' "$tmp/a.qcow2" log-level=info

# stderr is nbdkit's.
start_nbdkit "$tmp/a.qcow2" log=stderr log-format=json
stop_nbdkit
[ "$(count start "${server_log[main]}")" = 1 ]
[ ! -e stderr ]
# A full disk, or a pipe that nobody reads, delays no client.
mkfifo "$tmp/pipe"
exec 7<> "$tmp/pipe"
dd if=/dev/zero of=/dev/fd/7 bs=64k count=16 oflag=nonblock || :
for file in "$tmp/pipe" /dev/full; do
  start_nbdkit "$tmp/a.qcow2" log="$file"
  nbdinfo --size "$uri"
  stop_nbdkit
  [ "$(grep -c "error: log=$file: cannot write: " "${server_log[main]}")" = 1 ]
done
