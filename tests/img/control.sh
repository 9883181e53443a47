#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With --control, commands change and describe a disk that a server is using: ours, or
# QEMU's storage daemon.  What qemu-img and the clients find afterwards is what was asked for.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires qemu-storage-daemon --version

# make_chain: top over mid over base.
make_chain ()
{
  qemu-img create -q -f qcow2 base.qcow2 4M
  qemu-io -f qcow2 -c 'write -P 1 0 2M' base.qcow2
  qemu-img create -q -f qcow2 -F qcow2 -b base.qcow2 mid.qcow2
  qemu-io -f qcow2 -c 'write -P 2 1M 1M' mid.qcow2
  qemu-img create -q -f qcow2 -F qcow2 -b mid.qcow2 top.qcow2
  qemu-io -f qcow2 -c 'write -P 3 1500k 1M' top.qcow2
}
in_both make_chain
qemu-img convert -f qcow2 -O raw ours/top.qcow2 before.raw
start_both_served top.qcow2 disk

# live SIDE ARGUMENT...: SIDE is ours or theirs.
live ()
{
  local socket="$sockdir/o.qmp"
  [ "$1" = ours ] || socket="$sockdir/t.qmp"
  (cd "$1" && "$IMG" --control "$socket" "${@:2}")
}

# holds EXPRESSION: of the JSON on stdin, d.
holds ()
{
  /usr/bin/python3 -c 'import json, sys
d = json.load(sys.stdin)
assert eval("(" + sys.argv[1] + ")"), d' "$1"
}

# live_refused PATTERN ARGUMENT...: on a line, and nothing is changed.
live_refused ()
{
  local status=0
  set +x                        # (err would have it)
  live ours "${@:2}" 2>err || status=$?
  set -x
  [ "$status" = 1 ] || fail "not refused: $*"
  grep -Eq "^nbdkit-qcow2-img: $1" err || fail "$(cat err)"
  [ "$(wc -l < err)" = 1 ]
}

for side in ours theirs; do
  # The name of the disk, or of its file.
  live $side snapshot -c one disk
  live $side snapshot -c two top.qcow2
  live $side snapshot -d 1 disk
  live $side snapshot disk | tee list
  [ "$(awk '$1 ~ /^[0-9]+$/ { print $2 }' list)" = two ]
  live $side bitmap --add -g 128k disk kept
  live $side bitmap --add disk gone
  live $side bitmap --clear --disable --merge gone top.qcow2 kept
  live $side bitmap --remove disk gone
  live $side info --output=json --backing-chain disk |
    holds '[i["filename"].rpartition("/")[2] for i in d] ==
           ["top.qcow2", "mid.qcow2", "base.qcow2"] and not any("backing-image" in i for i in d)'
  live $side info disk | grep '^virtual size: 4 MiB'
done

# What qemu-img finds is tested below, when the servers have ended.  (QEMU's does not resize
# an export.)
live ours resize disk +1M | grep '^Image resized'
nbdinfo --size "$uri" | grep '^5242880$'
live_refused 'disk: cannot resize: a smaller disk requires --shrink' resize disk 1M
live ours resize --shrink disk -1M

live_refused '.*Snapshot with name .two. already exists' snapshot -c two disk
live_refused '-a cannot be used with --control' snapshot -a two disk
live_refused 'only one of' snapshot -a two -d two disk
live_refused '-f raw: the server uses disk as qcow2' snapshot -l -f raw disk
live ours snapshot -l -f qcow2 disk | grep ' two '
live_refused 'check cannot be used with --control' check disk
live_refused '--image-opts cannot be used with --control' info --image-opts disk
live_refused '-b cannot be used with --control' bitmap --merge x -b y disk kept
live_refused ".*no disk that this server is using is called 'nodisk'" info nodisk
live_refused "-b: 'none.qcow2' is not in the backing chain" rebase -b none.qcow2 -F qcow2 disk
live_refused '-F: that file has another format' rebase -b base.qcow2 -F raw disk
if "$IMG" --control nosocket info disk 2>err; then fail "without a server"; fi
grep '^nbdkit-qcow2-img: nosocket: No such file or directory$' err
if "$IMG" --control 2>err; then fail "without a socket"; fi
grep '^nbdkit-qcow2-img: no command was given' err

# The socket for clients of NBD is another one.
if "$IMG" --control="$sock" info disk 2>err; then fail "NBD's socket"; fi
grep 'main.sock: this is no QMP server$' err

# Who cannot lock the image learns where to send commands.
if img snapshot -c three ours/top.qcow2 2>err; then fail "not locked"; fi
grep "held by PID .*, which takes commands on $sockdir/o.qmp" err

# Chains that become shorter, in use.
live ours snapshot -d two disk          # (it needs the files below)
live theirs snapshot -d two disk
for side in ours theirs; do
  live $side rebase -p -b base.qcow2 -F qcow2 disk | grep '(100.00/100%)'
  live $side info --output=json disk | holds 'd["backing-filename"] == "base.qcow2"'
done
qemu-img compare -f qcow2 -F raw -U ours/top.qcow2 before.raw
live ours rebase -u -b ../ours/base.qcow2 -F qcow2 disk
live ours info disk | grep '^backing file: ../ours/base.qcow2'
qemu-io -f raw -c 'write -P 9 3M 64k' "$uri"
for side in ours theirs; do
  live $side commit disk | tee committed
  grep '^Image committed' committed
  grep "^The disk is now in $tmp/$side/base.qcow2: " committed
done
# What clients do not use any more is no disk.
if live theirs snapshot -c three top.qcow2; then fail "in a file that is not used"; fi
qemu-io -f raw -c 'read -P 9 3M 64k' -c 'read -P 2 1M 64k' -c 'write -P 8 0 64k' "$uri"
live ours rebase -b '' disk

stop_nbdkit
end_storage_daemon
check_clean ours/base.qcow2
check_clean ours/top.qcow2
qemu-io -f qcow2 -c 'read -P 8 0 64k' -c 'read -P 9 3M 64k' ours/base.qcow2
qemu-img info --output=json ours/top.qcow2 |
  holds 'd["format-specific"]["data"]["bitmaps"] ==
         [{"flags": [], "name": "kept", "granularity": 131072}]'
qemu-img compare -f qcow2 -F raw theirs/base.qcow2 before.raw

# A job that takes long is cancelled when the program is stopped.
make_image ours/b.qcow2 64M
qemu-img create -q -f qcow2 -F qcow2 -b b.qcow2 ours/a.qcow2
qemu-io -f qcow2 -c 'write -P 1 0 64M' ours/a.qcow2
start_nbdkit control="$sockdir/o.qmp" ours/a.qcow2
/usr/bin/python3 - "$srcdir/lib" "$IMG" "$sockdir/o.qmp" <<'END'
import signal, subprocess, sys
sys.path.insert(0, sys.argv[1])
from qmp import Client
c = Client(sys.argv[3])
# One that is killed leaves its job; the next one takes its place.
command = [sys.argv[2], "--control", sys.argv[3], "commit", "-r", "64k", "disk"]
p = subprocess.Popen(command)
c.until_status("running")
p.kill()
p.wait()
p = subprocess.Popen(command)
c.until_event("BLOCK_JOB_CANCELLED")
c.until_status("running")
p.send_signal(signal.SIGINT)
c.until_event("BLOCK_JOB_CANCELLED")
assert p.wait() == -signal.SIGINT, p.returncode
END
stop_nbdkit
check_clean ours/a.qcow2

# The name of a disk comes before that of a file.
mkdir images links
for i in a z; do
  make_image images/$i 1M
done
ln -s ../images/a links/z
start_nbdkit control="$sockdir/o.qmp" dir=images
cd links
/usr/bin/python3 - "$(export_uri a)" "$(export_uri z)" "$IMG" "$sockdir/o.qmp" <<'END'
import nbd, subprocess, sys
*uris, img, socket = sys.argv[1:]
clients = [nbd.NBD(), nbd.NBD()]
for client, uri in zip(clients, uris):
    client.connect_uri(uri)
subprocess.check_call([img, "--control", socket, "snapshot", "-c", "s", "z"])
END
cd ..
stop_nbdkit
qemu-img snapshot -l images/z | grep ' s '
if qemu-img snapshot -l images/a | grep ' s '; then fail "another disk"; fi
