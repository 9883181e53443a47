#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# With --control, amend adds and erases passphrases of a disk that a server is using: ours, or
# QEMU's storage daemon.  What cannot be done is one line, and leaves no job and no secret
# behind; nor does a program that was killed hinder the next one.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires qemu-storage-daemon --version

# opens PASSPHRASE IMAGE: does it?
opens ()
{
  qemu-io -r --object secret,id=s,data="$1" --image-opts -c 'read 0 512' \
    "driver=qcow2,encrypt.key-secret=s,file.filename=$2"
}

# amend ARGUMENT...
amend ()
{
  "$IMG" --control "$socket" amend --object secret,id=new,data=second \
    --object secret,id=old,data=first --object secret,id=bytes,file=bytes "$@" node0
}

cd "$tmp"
printf 'caf\xe9' > bytes           # no UTF-8
for d in ours theirs; do
  qemu-img create -q -f qcow2 --object secret,id=s,data=first -o encrypt.format=luks \
    -o encrypt.key-secret=s,encrypt.iter-time=10 $d/a.qcow2 1M
done
start_nbdkit control="$sockdir/o.qmp" passphrase=first ours/a.qcow2
start_storage_daemon --object secret,id=s,data=first \
  --nbd-server addr.type=unix,addr.path="$sockdir/t.nbd" \
  --blockdev qcow2,node-name=node0,file.driver=file,file.filename=theirs/a.qcow2,encrypt.format=luks,encrypt.key-secret=s \
  --export nbd,id=disk,node-name=node0,writable=on,name=

for d in ours theirs; do
  socket="$sockdir/o.qmp"
  [ $d = ours ] || socket="$sockdir/t.qmp"
  # A killed program: its job has ended, but nobody has dismissed it.
  PYTHONPATH="$srcdir/lib" "$python" - "$socket" <<'PY'
import os, subprocess, sys
from qmp import Client

c = Client(sys.argv[1])
p = subprocess.Popen(["true"])
p.wait()
c.get("x-blockdev-amend", node_name="node0", options={"driver": "qcow2"},
      job_id="nbdkit-qcow2-img.%d.%d" % (p.pid, os.stat("/proc/self/ns/pid").st_ino))
c.until_status("concluded")
PY
  amend -o encrypt.state=active,encrypt.new-secret=new,encrypt.iter-time=10
  amend -o encrypt.state=inactive,encrypt.old-secret=old
  for options in size=2M compat=0.10 encrypt.state=active \
    encrypt.state=active,encrypt.new-secret=nosuch encrypt.state=inactive,encrypt.old-secret=old \
    encrypt.state=inactive,encrypt.keyslot=1; do
    ! amend -o $options 2> said || fail "$d: $options"
    cat said
    [ "$(grep -vc '^+' said)" = 1 ]
  done
  PYTHONPATH="$srcdir/lib" "$python" - "$socket" <<'PY'
import sys
from qmp import Client

assert Client(sys.argv[1]).get("query-jobs") == []
PY
done
socket="$sockdir/o.qmp"
amend -o encrypt.state=active,encrypt.new-secret=bytes,encrypt.iter-time=10
stop_nbdkit
end_storage_daemon
start_nbdkit passphrase=+bytes ours/a.qcow2
stop_nbdkit
for d in ours theirs; do
  opens second $d/a.qcow2
  ! opens first $d/a.qcow2 || fail "$d: the old passphrase opens it"
done
