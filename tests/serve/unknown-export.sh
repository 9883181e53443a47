#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A client that asks for an export that does not exist causes one line in the log, which
# says what is missing; what succeeds all the same is not called an error.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdinfo --version

# asks EXPORT TEXT: the one error is TEXT.
asks ()
{
  local log="${server_log[main]}" before
  before=$(grep -c 'error: ' "$log" || :)
  fails_with nbd_connect_uri "$python" -c 'import nbd, sys; nbd.NBD().connect_uri(sys.argv[1])' \
    "$(export_uri "$1")"
  stop_nbdkit
  grep 'error: ' "$log" | tail -n +$((before + 1)) > "$tmp/errors"
  cat "$tmp/errors"
  [ "$(wc -l < "$tmp/errors")" = 1 ] || fail "not one line"
  grep "error: $2\$" "$tmp/errors"
}

mkdir "$tmp/dir"
make_image "$tmp/dir/a.qcow2" 1M
start_nbdkit file="$tmp/dir/a.qcow2"
asks none 'there is no snapshot "none"'
start_nbdkit file="$tmp/dir/a.qcow2"
asks bitmap:none 'there is no bitmap "none"'
start_nbdkit dir="$tmp/dir"
asks none.qcow2 'there is no image "none.qcow2" in the directory'
start_nbdkit dir="$tmp/dir"
asks a.qcow2/none 'a.qcow2: there is no snapshot "none"'

# Here the client gets its export, but may not write.
header_patch "$tmp/dir/a.qcow2" 72 Q 2
start_nbdkit file="$tmp/dir/a.qcow2"
nbdinfo "$uri" | grep 'is_read_only: true'
stop_nbdkit
grep 'error: .*served read-only' "${server_log[main]}"
grep 'error: despite that, the export was opened$' "${server_log[main]}"
