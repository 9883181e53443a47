#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image inside an RBD image in a Ceph cluster, behind qemu-nbd: what was flushed is
# there after our server, qemu-nbd and the OSD were killed.  While the OSD is away, writes
# wait.  A snapshot in the cluster is the base of an overlay here.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/ceph.sh"
. "$srcdir/lib/engines.sh"
requires_tools
requires nbdcopy --version
lacks="$(lacks_for_ceph)"
[ -z "$lacks" ] || skip "$lacks"

parts=(far osd)
far_uri="nbd+unix:///?socket=$sockdir/rbd.sock"

# serve_rbd IMAGE [OPTION...]: with a cache that keeps what is not flushed, and loses it
# when qemu-nbd is killed.
serve_rbd ()
{
  local cache=rbd_cache_policy=writeback

  cache+=:rbd_cache_writethrough_until_flush=false:rbd_cache_max_dirty_age=60
  rm -f "$sockdir/rbd.sock"
  start_daemon far qemu-nbd -f raw -t -e 10 -k "$sockdir/rbd.sock" "${@:2}" "rbd:rbd/$1:$cache"
  await_daemon far nbdinfo --size "$far_uri"
}

start_engine ()
{
  start_ceph
  serve_rbd disk
}

start_ceph
rbd create --size 32M disk
start_engine
fill_engine
for victim in main far; do crash_round "$victim"; done

# Nothing else happens to make this durable.
start_nbdkit "$far_uri" lock=false
nbdsh_run -c 'h.pwrite(b"flushed" * 10000, 1 << 20); h.flush()'
for victim in main far osd; do kill_part "$victim"; done
start_engine
start_nbdkit "$far_uri" lock=false
nbdsh_run -c 'assert h.pread(70000, 1 << 20) == b"flushed" * 10000'
stop_nbdkit

copy_far "$tmp/image"
clean_round

# Writes wait for the OSD.
start_nbdkit "$far_uri" lock=false
model random "$uri" "$tmp/model.raw" --seconds 60 > "$tmp/waited" &
writer=$!
await -p $writer grep SEED "$tmp/waited"
kill_part osd
sleep 1
kill -0 $writer
start_ceph
wait $writer
stop_nbdkit
kill_part far
kill_part osd
start_ceph

# QEMU itself judges.
check_clean rbd:rbd/disk
qemu-img compare -f qcow2 -F raw rbd:rbd/disk "$tmp/model.raw"

# A snapshot, read-only, as the base of an overlay here.
rbd snap create --no-progress disk@golden
serve_rbd disk@golden -r
start_nbdkit "$tmp/overlay.qcow2" create=auto backing-file="$far_uri" backing-format=qcow2
model random "$uri" "$tmp/model.raw" --seconds 1
stop_nbdkit
start_nbdkit "$tmp/overlay.qcow2" allow-uri="$far_uri"
model verify "$uri" "$tmp/model.raw"
model random "$uri" "$tmp/model.raw" --seconds 1
stop_nbdkit
check_clean "$tmp/overlay.qcow2"
qemu-img compare -f qcow2 -F raw "$tmp/overlay.qcow2" "$tmp/model.raw"
