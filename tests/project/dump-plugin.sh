#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The plugin can be loaded, and --dump-plugin shows its version and features.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires "$NBDKIT" --version

"$NBDKIT" "$PLUGIN" --dump-plugin > "$tmp/dump"
cat "$tmp/dump"
for line in name=qcow2 api_version=2 magic_config_key=file errno_is_preserved=1 \
            thread_model=parallel has_get_ready=1 has_open=1 has_get_size=1 \
            has_block_size=1 has_pread=1 has_pwrite=1 has_flush=1 has_trim=1 \
            has_zero=1 has_extents=1 has_cache=1 has_can_multi_conn=1 \
            has_can_fast_zero=1 has_can_fua=1 qcow2_data_file=yes; do
  grep -qx "$line" "$tmp/dump" || fail "--dump-plugin lacks $line"
done

# nbdkit's bash completion needs lines that begin with the key.
"$NBDKIT" "$PLUGIN" --help > "$tmp/help"
grep -q '^\[file=\]' "$tmp/help"
grep -q '^l2-cache=' "$tmp/help"

"$NBDKIT" "$PLUGIN" --version | grep -q '^qcow2 '
