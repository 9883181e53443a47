#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# file=URI: an image in an export of another NBD server is served like one in a file,
# whatever features that server lacks.  After random requests the server is killed, and
# qemu-img judges the image on the other server: all flushed data is there, and no
# faults.  Checks, and changes before serving, work as well.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
sample 3 blocksize-policy fua multi-conn nocache noextents nozero
for filter in "${sample[@]}"; do
  requires_filter $filter
done

far="$tmp/far"

# make_far [OPTIONS [CLUSTER-SIZE]]: an image of 16M that fills a quarter of a larger export.
make_far ()
{
  cluster="${2-65536}"
  rm -f "$far" "$tmp/model.raw"
  make_image "$far" 16M "${1-}"
  truncate -s 64M "$far"
}

# serve_far [OPTION...]: the export, at $far_uri.
serve_far ()
{
  PLUGIN=file start_nbdkit_as far "${@:1:$#}" -- "$far" ${far_parameter:+"$far_parameter"}
  far_uri="$uri"
}

round ()
{
  serve_far "$@"
  start_nbdkit "$far_uri" lock=false
  model random "$uri" "$tmp/model.raw" --seconds 1 --connections 3 --cluster "$cluster"
  stop_nbdkit
  kill9_nbdkit far
  check_clean "$far"
  same_as_raw "$far" "$tmp/model.raw"
}

make_far
round --filter=nofilter
make_far cluster_size=4096 4096
round --filter=nozero --filter=noextents
make_far extended_l2=on
round --filter=fua --filter=nocache
far_parameter=multi-conn-mode=disable
make_far compat=v2
round --filter=multi-conn
# Blocks that we don't write whole.
far_parameter=blocksize-minimum=4096
make_far cluster_size=512 512
round --filter=blocksize-policy
far_parameter=

# qemu-nbd as the other server.
make_far
qemu-nbd -f raw -t -e 10 -k "$sockdir/qemu.sock" "$far" &
helper_pids+=($!)
while ! nbdinfo --size "nbd+unix:///?socket=$sockdir/qemu.sock"; do
  kill -0 "${helper_pids[0]}"
done
start_nbdkit "nbd+unix:///?socket=$sockdir/qemu.sock" lock=false
model random "$uri" "$tmp/model.raw" --seconds 1 --connections 3 --cluster "$cluster"
stop_nbdkit
kill -KILL "${helper_pids[0]}"
wait "${helper_pids[0]}" || :
helper_pids=()
check_clean "$far"
same_as_raw "$far" "$tmp/model.raw"

# Before serving.
make_far
serve_far --filter=nofilter
served ()
{
  "$NBDKIT" -U - "$PLUGIN" "$far_uri" lock=false "$@" --run 'true' > "$tmp/out" 2>&1 ||
    { cat "$tmp/out"; return 1; }
}
served snapshot-create=monday bitmap-add=changes
served resize=24M check=full
grep 'check=full: clean' "$tmp/out"
served snapshot-delete=monday resize=16M shrink=true bitmap-remove=changes
served check=repair
check_clean "$far"
[ "$(qemu-img info -U -f qcow2 --output=json "$far" |
     "$python" -c 'import json, sys; print(json.load(sys.stdin)["virtual-size"])')" = $((16 << 20)) ]

# The export does not grow.
start_nbdkit "$far_uri" lock=false
nbdsh_run -c - <<'END'
import errno
h.pwrite(b"1" * (8 << 20), 0)
h.flush()
END
stop_nbdkit
served resize=128M
start_nbdkit "$far_uri" lock=false
nbdsh_run -c - <<'END'
import errno
try:
    for i in range(7):
        h.pwrite(b"2" * (16 << 20), (i + 1) << 24)
    raise SystemExit("more was written than the export can hold")
except nbd.Error as e:
    assert e.errnum == errno.ENOSPC, e
h.flush()
assert h.pread(8 << 20, 0) == b"1" * (8 << 20)
END
stop_nbdkit
grep 'cannot grow beyond 67108864 bytes' "$tmp/main.log"
check_clean "$far"
