#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A limit of the file size (ulimit -f), set at any time, looks like a full disk to
# clients: requests fail with ENOSPC, and no acknowledged write is lost.  When the limit
# is raised all requests succeed again, and the image is clean.  The server survives, and
# the program that --run starts does not inherit its handling of SIGXFSZ.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

export SEED="${SEED:-$RANDOM$RANDOM}"
echo "SEED=$SEED"

# limited: random requests, while the limit goes up and down; then without one, all that
# failed once more.  Writes what the disk holds then to $tmp/disk.raw.
cat > "$tmp/limited.py" <<'PY'
import errno, nbd, os, random, resource, sys, zlib

uri, pid, image, raw, name = sys.argv[1], int(sys.argv[2]), *sys.argv[3:6]
rng = random.Random("%s %s" % (os.environ["SEED"], name))
h = nbd.NBD()
h.connect_uri(uri)
size = h.get_size()
model = bytearray(h.pread(size, 0))
unsure = set()          # blocks of requests that have failed
block = 4096
full = 0

def limit(bytes):
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (bytes, resource.RLIM_INFINITY))

def request(what, *args, flags=0):
    global full
    try:
        what(*args, flags=flags)
        return True
    except nbd.Error as e:
        assert e.errno == "ENOSPC", e
        full += 1
        return False

def change():
    at = rng.randrange(size // block)
    n = min(rng.choice((1, 1, 3, 16, 100)), size // block - at)
    data = rng.randbytes(n * block)
    kind = rng.randrange(6)
    fua = nbd.CMD_FLAG_FUA if rng.randrange(4) == 0 else 0
    if kind < 4:
        done = request(h.pwrite, data, at * block, flags=fua)
    else:
        data = bytes(n * block)
        what, flags = ((h.zero, nbd.CMD_FLAG_NO_HOLE), (h.zero, 0))[kind - 4]
        done = request(what, n * block, at * block, flags=flags | fua)
    if done:
        model[at * block:(at + n) * block] = data
        unsure.difference_update(range(at, at + n))
    else:
        unsure.update(range(at, at + n))

for _ in range(12):
    top = max(os.stat(f).st_size for f in image.split(","))
    limit(rng.choice((0, rng.randrange(top + 1), top, top + rng.randrange(4 << 20),
                      resource.RLIM_INFINITY)))
    for _ in range(rng.randrange(20)):
        change()
    request(h.flush)
    at = rng.randrange(size // block)
    if at not in unsure:
        assert h.pread(block, at * block) == model[at * block:(at + 1) * block], at
limit(resource.RLIM_INFINITY)
h.flush()
for at in sorted(unsure):
    data = rng.randbytes(block)
    h.pwrite(data, at * block)
    model[at * block:(at + 1) * block] = data
h.flush()
assert h.pread(size, 0) == model
h.shutdown()
with open(raw, "wb") as f:
    f.write(model)
print("FULL", full, name)
PY

# limited NAME FILES PARAMETER...: FILES are those that grow, separated by commas.
limited ()
{
  local name="$1" files="$2"
  shift 2
  start_nbdkit "$@"
  "$python" "$tmp/limited.py" "$uri" "$nbdkit_pid" "$files" "$tmp/disk.raw" "$name" \
    | tee -a "$tmp/full"
  server_lives
  stop_nbdkit
  if grep -q "no longer\|corrupt" "$tmp/main.log"; then fail "the image was given up"; fi
}

img="$tmp/a.qcow2" size=8M
for options in cluster_size=64k cluster_size=512 cluster_size=2M extended_l2=on,cluster_size=16k \
  lazy_refcounts=on,cluster_size=4k compat=0.10,cluster_size=4k; do
  rm -f "$img"
  make_image "$img" "$size" "$options"
  limited "$options" "$img" file="$img"
  check_clean "$img"
  same_as_raw "$img" "$tmp/disk.raw"
done

# Over a backing file; compressed; with a bitmap; with data in another file.
random_file "$tmp/base.raw" 5000000
rm -f "$img"
qemu-img create -q -f qcow2 -b base.raw -F raw -o cluster_size=16k "$img" "$size"
limited overlay "$img" file="$img" compress=on
check_clean "$img"
same_as_raw "$img" "$tmp/disk.raw"
rm -f "$img"
make_image "$img" "$size" cluster_size=4k
limited bitmap "$img" file="$img" bitmap-add=b bitmap-granularity=4096
check_clean "$img"
qemu-img info "$img" | grep -A 4 bitmaps
qemu-img info "$img" | grep in-use && fail "the bitmap is in use"
same_as_raw "$img" "$tmp/disk.raw"
for raw in off on; do
  rm -f "$img" "$tmp/data"
  make_image "$img" "$size" "cluster_size=4k,data_file=$tmp/data,data_file_raw=$raw"
  limited "data_file_raw=$raw" "$img,$tmp/data" file="$img"
  check_clean "$img"
  same_as_raw "$img" "$tmp/disk.raw"
done

[ "$(grep -c "FULL [1-9]" "$tmp/full")" -ge 5 ]

# From the start: what can't be written is not there, and not half there.
# refused_at_once PARAMETER...: the server may write no byte to any file.
refused_at_once ()
{
  local status=0

  (ulimit -S -f 0; exec "$NBDKIT" -U - "$PLUGIN" "$@" --run 'echo SERVED') 2>&1 \
    | cat > "$tmp/out" || status=$?
  cat "$tmp/out"
  [ "$status" -eq 1 ]
  tail -n 1 "$tmp/out" | grep 'File too large'
}
mkdir "$tmp/new"
refused_at_once "$tmp/new/a.qcow2" create=1M
refused_at_once "$img" check=quick check-report="$tmp/new/report.json"
refused_at_once "$img" stats="$tmp/new/stats.json"
[ -z "$(ls -A "$tmp/new")" ]

# Statistics.
start_nbdkit file="$img" stats="$tmp/stats.json"
"$python" -c 'import resource, sys
resource.prlimit(int(sys.argv[1]), resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))' \
  "$nbdkit_pid"
nbdinfo --size "$uri"
server_lives
"$python" -c 'import resource, sys
resource.prlimit(int(sys.argv[1]), resource.RLIMIT_FSIZE, (-1, -1))' "$nbdkit_pid"
nbdinfo --size "$uri"
stop_nbdkit
"$python" -c 'import json, sys
assert json.load(open(sys.argv[1]))["connections"]["ever"] >= 2' "$tmp/stats.json"
[ "$(echo "$tmp"/stats.json*)" = "$tmp/stats.json" ]

# What is started with --run.
# (With the same signals ignored as here, and nothing caught yet.)
outside=$(sh -c 'grep SigIgn /proc/self/status')
inside=$("$NBDKIT" -U - "$PLUGIN" "$img" --run 'grep SigIgn /proc/self/status')
[ "$((0x${outside#*:[[:space:]]} & 1 << 24))" = "$((0x${inside#*:[[:space:]]} & 1 << 24))" ]
