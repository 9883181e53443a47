#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# After a disk has moved to another image (blockdev-mirror, or block-commit of the image on
# top), a server that is started with the name of the old one lets no client write it, and
# changes nothing in it; the line in its log names both.  It can still be read, and so it is
# whatever link or directory leads to it, and after both were moved or it was renamed.  It can
# be written when the new one has gone, or when the disk has moved back, and so can a copy;
# then the other one is refused.  A job that is cancelled changes nothing of that.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/oldimage.sh"
requires_tools
requires qemu-nbd --version
requires strace -f -P / -e trace=openat,openat2 -e inject=openat:error=ESTALE true

d="$tmp/d"
mkdir "$d"
old="$d/old.qcow2" new="$d/new.qcow2"

# moves FROM HOW TO [END]: the disk does, and has data afterwards that only TO has.
moves ()
{
  start_nbdkit control="$sockdir/qmp" "$1"
  PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$2" "$3" "${4:-job-complete}" <<'PY'
import sys
from qmp import Client, connect
sockdir, how, to, end = sys.argv[1:]
c, h = Client(sockdir + "/qmp"), connect(sockdir + "/main.sock")
h.pwrite(b"1" * 65536, 0)
if how == "mirror":
    server = {"driver": "nbd", "server": {"type": "unix", "path": to}}
    c.get("blockdev-add", driver="qcow2", node_name="n",
          file=server if to.endswith(".sock") else {"driver": "file", "filename": to})
    c.get("blockdev-mirror", job_id="j", device="disk", target="n", sync="full")
else:
    c.get("block-commit", device="disk", job_id="j")
c.until_event("BLOCK_JOB_READY")
c.get(end, **{"device" if end == "block-job-cancel" else "id": "j"})
done = c.until_event("BLOCK_JOB_CANCELLED" if end == "job-cancel" else "BLOCK_JOB_COMPLETED")
assert "error" not in done[-1]["data"], done
if end == "job-complete":
    h.pwrite(b"2" * 65536, 65536, 1)
PY
}

# refused_now IMAGE NEW [FILE]: as FILE, because of NEW; it does not change.
refused_now ()
{
  not_written "the disk has moved to" "$1" "$2:" "${@:3}"
}

for options in compat=v2 cluster_size=4k extended_l2=on; do
  rm -f "$d"/*
  make_image "$old" 8M
  make_image "$new" 8M "$options"
  moves "$old" mirror "$new"
  # (Version 2 has no mark that leaks are to be freed.)
  if [ "$options" = compat=v2 ]; then stop_nbdkit; else kill9_nbdkit; fi
  check_clean "$old"
  current "$new"
  qemu-io -r -f qcow2 -c 'read -P 0x32 64k 64k' "$new"
  refused_now "$old" "$new"
done

start_nbdkit -r -- "$old"
nbdsh_run -c 'assert h.pread(512, 65536) == bytes(512) and h.is_read_only()'
stop_nbdkit
refused "moved to $new" "$old" resize=9M
ln -s d/old.qcow2 "$tmp/link.qcow2"
refused_now "$old" "$new" "$tmp/link.qcow2"
# While the new one cannot be looked at, either.
calls=openat,openat2
for error in EIO ESTALE ENOTCONN ESHUTDOWN; do
  before="$(fingerprint "$old")"
  NBDKIT_WRAPPER="strace -f -qq -o /dev/null -P $new -e trace=$calls -e inject=$calls:error=$error" \
    start_nbdkit "$old"
  refused_connection "$old: is not written: the disk may have gone on in new.qcow2, which cannot"
  kill_traced
  [ "$before" = "$(fingerprint "$old")" ]
done
qemu-img amend -f qcow2 -o lazy_refcounts=on "$old"
refused_now "$old" "$new"
cp "$old" "$tmp/copy.qcow2"
current "$tmp/copy.qcow2"
mv "$old" "$d/renamed.qcow2"
refused_now "$d/renamed.qcow2" "$new"
mv "$d/renamed.qcow2" "$old"
mv "$d" "$tmp/e"
refused_now "$tmp/e/old.qcow2" "$tmp/e/new.qcow2"
mv "$tmp/e" "$d"
mv "$new" "$tmp/new.qcow2"
current "$old"
mv "$tmp/new.qcow2" "$new"
refused_now "$old" "$new"

# On, and from there all the way back; neither a copy that has ended nor one that was cancelled
# counts.
make_image "$tmp/third.qcow2" 8M
for end in job-cancel block-job-cancel; do
  moves "$new" mirror "$tmp/third.qcow2" $end
  kill9_nbdkit
  current "$new"
done
moves "$new" mirror "$tmp/third.qcow2"
stop_nbdkit
refused_now "$new" "$tmp/third.qcow2"
refused_now "$old" "$tmp/third.qcow2"
moves "$tmp/third.qcow2" mirror "$old"
stop_nbdkit
current "$old"
refused_now "$new" "$old"
refused_now "$tmp/third.qcow2" "$old"
for image in "$new" "$old" "$new"; do
  moves "$([ "$image" = "$old" ] && echo "$new" || echo "$old")" mirror "$image"
  stop_nbdkit
  current "$image"
  refused_now "$([ "$image" = "$old" ] && echo "$new" || echo "$old")" "$image"
done

# Back to the old one, but on an NBD server: it does not name any other afterwards.
truncate -s 16M "$old"
qemu-nbd -t -f raw -k "$sockdir/old.sock" "$old" &
helper_pids+=($!)
await -p $! listens "$sockdir/old.sock"
moves "$new" mirror "$sockdir/old.sock"
stop_nbdkit
kill "${helper_pids[-1]}"
await_end "${helper_pids[-1]}"
current "$old"

# The name of the new one is used again, by another disk, which then leaves its old image: that
# has nothing to do with the first.
rm -f "$d"/*
make_image "$old" 8M
make_image "$new" 8M
moves "$old" mirror "$new"
stop_nbdkit
rm "$new"
current "$old"
make_image "$d/other.qcow2" 8M
make_image "$new" 8M
moves "$d/other.qcow2" mirror "$new"
stop_nbdkit
mv "$d/other.qcow2" "$tmp/other.qcow2"
current "$old"
current "$new"

# A commit, with an image between: that one still lies over the base.
for end in kill9_nbdkit stop_nbdkit; do
  rm -f "$d"/*
  make_image "$new" 8M
  for name in a b; do
    start_nbdkit control="$sockdir/qmp" "$(ls -t "$d"/* | head -n 1)"
    PYTHONPATH="$srcdir/lib" "$python" -c 'import sys
from qmp import Client, connect
Client(sys.argv[1] + "/qmp").get("blockdev-snapshot-sync", device="disk",
                                 snapshot_file=sys.argv[2])
connect(sys.argv[1] + "/main.sock").pwrite(b"x" * 65536, 1 << 20, 1)' "$sockdir" "$d/$name"
    stop_nbdkit
    touch "$d/$name"
  done
  moves "$d/b" commit ""
  $end
  current "$new"
  refused_now "$d/b" "$new"
  # Nor is what is below it written, which is the disk.
  before="$(fingerprint "$new")"
  start_nbdkit control="$sockdir/qmp" "$d/b"
  PYTHONPATH="$srcdir/lib" "$python" -c 'import sys
from qmp import Client
d = sys.argv[2]
Client(sys.argv[1] + "/qmp").refuses("the disk has moved to", "block-commit", device="disk",
                                     top=d + "/a", base=d + "/new.qcow2")' "$sockdir" "$d"
  stop_nbdkit
  [ "$before" = "$(fingerprint "$new")" ]
  start_nbdkit "$d/a"
  refused_connection "$d/a: is not written: "
  stop_nbdkit
  rm "$new"
  refused "new.qcow2" "$d/b"
done

# An image that the disk has left empty is put on top again: then it is the disk.
rm -f "$d"/*
make_image "$old" 8M
start_nbdkit control="$sockdir/qmp" "$old"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$new" <<'PY'
import sys
from qmp import Client, connect
sockdir, new = sys.argv[1:]
c, h = Client(sockdir + "/qmp"), connect(sockdir + "/main.sock")
c.get("blockdev-snapshot-sync", device="disk", snapshot_file=new)
c.get("block-commit", device="disk", job_id="j")
c.until_event("BLOCK_JOB_READY")
c.get("job-complete", id="j")
c.until_event("BLOCK_JOB_COMPLETED")
c.get("blockdev-snapshot-sync", device="disk", snapshot_file=new, mode="existing")
h.pwrite(b"3" * 65536, 65536, 1)
PY
kill9_nbdkit
start_nbdkit "$old"
refused_connection "$old: is not written: the disk has gone on in $new,"
stop_nbdkit
current "$new"

# Without space for a name, the disk moves all the same, and the log says so.
rm -f "$d"/*
long="$d/$(printf '%0200d' 1)/$(printf '%0200d' 1)"
mkdir -p "$long"
make_image "$long/old.qcow2" 1M
make_image "$new" 1M cluster_size=512
moves "$long/old.qcow2" mirror "$new"
grep "new.qcow2: the disk has moved here from .*/old.qcow2, which does not say so" "$tmp/main.log"
kill9_nbdkit
current "$new"
current "$long/old.qcow2"
