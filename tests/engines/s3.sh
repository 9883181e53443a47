#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image in an S3 bucket (SeaweedFS), in objects of 64K behind nbdkit's S3 plugin: what
# was flushed is there after our server, that nbdkit, or the S3 server was killed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/engines.sh"
requires_tools
requires nbdcopy --version
requires "$NBDKIT" S3 --dump-plugin
requires_filter blocksize-policy
requires find_weed
requires curl --version
requires_network

engine_ops=300
parts=(nbd weed)
weed=$(find_weed)
export AWS_DEFAULT_REGION=us-east-1 AWS_MAX_ATTEMPTS=2

# is_ready: can objects be written and read?
is_ready ()
{
  local bucket=http://127.0.0.1:8333/bucket

  { curl -m 5 -sS -f -I "$bucket" || curl -m 5 -sS -f -X PUT "$bucket"; } &&
    curl -m 5 -sS -f -d ready "$bucket/probe" -X PUT &&
    curl -m 5 -sS -f "$bucket/probe"
}

start_weed ()
{
  mkdir -p "$tmp/weed/tmp"
  # It makes sockets in /tmp: a private one.
  # shellcheck disable=SC2016
  start_daemon weed unshare --mount bash -e -c '
    cd "$1"; exec 9<"$0"; mount --bind tmp /tmp; shift; exec /proc/self/fd/9 "$@"' \
    "$weed" "$tmp/weed" server -dir=. -ip=127.0.0.1 -s3 -s3.port=8333 \
    -s3.port.iceberg=0 -s3.port.lance=0 -volume.max=4 -master.volumeSizeLimitMB=64 \
    -volume.minFreeSpace=0 \
    -master.telemetry=false -master.electionTimeout=500ms \
    -master.heartbeatInterval=100ms
  await_daemon weed is_ready
}

start_engine ()
{
  [ -n "${server_pid[weed]:-}" ] || start_weed
  PLUGIN=S3 start_nbdkit_as nbd --filter=blocksize-policy -- \
    endpoint-url=http://127.0.0.1:8333 access-key=any secret-key=any bucket=bucket key=disk \
    size=32M object-size=64K blocksize-minimum=512 blocksize-preferred=64K \
    blocksize-maximum=1M
  far_uri="$uri"
}

engine_keeps_what_was_flushed
