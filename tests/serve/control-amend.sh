#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Passphrases of an encrypted image in use: object-add, object-del and x-blockdev-amend
# answer as qemu-storage-daemon does, to right and wrong arguments, with the same events.
# Clients write meanwhile, and afterwards exactly the passphrases that were not erased open
# the image.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-storage-daemon --version

# opens PASSPHRASE IMAGE: does it?
opens ()
{
  qemu-io -r --object secret,id=s,data="$1" --image-opts -c 'read 0 512' \
    "driver=qcow2,encrypt.key-secret=s,file.filename=$2" > "$tmp/log" 2>&1
}

for d in ours theirs; do
  mkdir "$tmp/$d"
  qemu-img create -q -f qcow2 --object secret,id=s,data=first -o encrypt.format=luks \
    -o encrypt.key-secret=s,encrypt.iter-time=10 "$tmp/$d/a.qcow2" 8M
  qemu-img create -q -f qcow2 "$tmp/$d/plain.qcow2" 8M
done
printf fourth > "$tmp/file"
truncate -s 8M "$tmp/model"

start_nbdkit control="$sockdir/o.qmp" passphrase=first "$tmp/ours/a.qcow2"
start_storage_daemon --object secret,id=s,data=first \
  --blockdev qcow2,node-name=node0,file.driver=file,file.filename="$tmp/theirs/a.qcow2",encrypt.format=luks,encrypt.key-secret=s

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" "$tmp" "$uri" <<'PY'
import os
import sys
from qmp import Both, Writers

sockdir, tmp, uri = sys.argv[1:]
both = Both(sockdir, tmp)
ask, ok, ours = both.ask, both.get, both.ours

def add(**d):
    return ask("object-add", **{k.replace("qom_", "qom-"): v for k, v in d.items()})

def secret(id, text):
    ok("object-add", **{"qom-type": "secret", "id": id, "data": text})

def class_of(command, **d):
    """Texts of their own; the same class."""
    a, b = both.each(command, **d)
    assert a["error"]["class"] == b["error"]["class"], (a, b)

# Secrets.
add()
add(id="x")
add(qom_type="secret")
add(qom_type="nosuch", id="x")
add(qom_type="secret", id="x")
add(qom_type="secret", id="0", data="a")
add(qom_type="secret", id="x", data="a", file="/x")
add(qom_type="secret", id="x", data="a", format="rot13")
add(qom_type="secret", id="x", data="a", colour="red")
add(qom_type="secret", id="x", data=1)
class_of("object-add", **{"qom-type": "secret", "id": "x", "file": "/nonexistent"})
os.mkfifo(tmp + "/fifo")
ours.refuses("not a regular file", "object-add", **{"qom-type": "secret", "id": "x",
                                                    "file": tmp + "/fifo"})
class_of("object-add", **{"qom-type": "secret", "id": "x", "data": "!", "format": "base64"})
class_of("object-add", **{"qom-type": "secret", "id": "x", "data": "a", "keyid": "y"})
secret("x", "a")
add(qom_type="secret", id="x", data="a")
ask("object-del", id="nosuch")
ask("object-del")
ok("object-del", id="x")
ask("object-del", id="x")

# Commands that are refused.
options = {"driver": "qcow2"}
luks = {"format": "luks", "state": "active", "new-secret": "second", "iter-time": 10}
def amend(options, node="node0", id="j", **d):
    return ask("x-blockdev-amend", job_id=id, node_name=node, options=options, **d)

ask("x-blockdev-amend")
ask("x-blockdev-amend", job_id="j")
ask("x-blockdev-amend", job_id="j", node_name="node0")
ask("x-blockdev-amend", job_id="j", node_name="node0", options=3)
ask("x-blockdev-amend", node_name="node0", options=options)
amend({})
amend({"driver": "qcow2", "colour": "red"})
amend({"driver": "qcow2", "encrypt": 3})
amend({"driver": "qcow2", "encrypt": {"state": "active"}})
amend({"driver": "qcow2", "encrypt": {"format": "luks"}})
amend({"driver": "qcow2", "encrypt": dict(luks, colour="red")})
amend({"driver": "raw"})
amend(options, node="nosuch")
amend(options, id="0")

# Jobs: the same states, and the same result; the words are not always QEMU's, for what is
# found out when the image changes.
def job(encrypt, words=True, says="", **d):
    answer = amend({"driver": "qcow2", "encrypt": encrypt} if encrypt else options, **d)
    assert "return" in answer, answer
    if words:
        both.until_status("concluded")
    else:
        for c in both.clients:
            c.until_status("concluded")
    for a, b in zip(*[c.get("query-jobs") for c in both.clients]):
        if not words:
            assert ("error" in a) == ("error" in b), (a, b)
            assert says in a.get("error", ""), a
            continue
        assert a == b, (a, b)
    assert ok("query-block-jobs") == []
    ok("job-dismiss", id="j")
    both.until_status("null")

def active(**d):
    return {"format": "luks", "state": "active", "iter-time": 10,
            **{k.replace("_", "-"): v for k, v in d.items()}}

def inactive(**d):
    return {"format": "luks", "state": "inactive",
            **{k.replace("_", "-"): v for k, v in d.items()}}

writers = Writers(uri, tmp + "/model").start()
job(None)
job({"format": "qcow"})
job(active())
job(active(new_secret="nosuch"))
job(inactive())
job(inactive(new_secret="nosuch"))
job(active(new_secret="nosuch", old_secret="nosuch"))
job(inactive(old_secret="nosuch"))
job(inactive(keyslot=8))
job(inactive(keyslot=0), words=False)
job(inactive(keyslot=5), words=False)
secret("second", "second")
secret("third", "third")
ok("object-add", **{"qom-type": "secret", "id": "fourth", "file": tmp + "/file"})
job(active(new_secret="second", keyslot=0), words=False)
job(active(new_secret="second"))
job(active(new_secret="third", keyslot=4))
job(active(new_secret="fourth"))
job(inactive(old_secret="third"))
job(inactive(old_secret="third"), words=False)
job(inactive(keyslot=1))
secret("first", "first")
ask("block-job-cancel", device="j")
job(inactive(old_secret="first"))
job(inactive(old_secret="fourth"), words=False, says='the argument "force" permits that')
writers.rest()
PY
stop_nbdkit
end_storage_daemon

for d in ours theirs; do
  for p in first second third; do
    ! opens $p "$tmp/$d/a.qcow2" || fail "$d: $p opens it"
  done
  opens fourth "$tmp/$d/a.qcow2" || { cat "$tmp/log"; fail "$d: it does not open"; }
  qemu-img check -q --object secret,id=s,data=fourth --image-opts \
    "driver=qcow2,encrypt.key-secret=s,file.filename=$tmp/$d/a.qcow2"
done

# An image that is not encrypted; a layer below; a server that changes nothing.
qemu-img create -q -f qcow2 -b "$tmp/ours/a.qcow2" -F qcow2 "$tmp/over.qcow2" -u 8M
start_nbdkit control="$sockdir/p.qmp" passphrase=fourth "$tmp/over.qcow2"
PYTHONPATH="$srcdir/lib" "$python" - "$sockdir" <<'PY'
import sys
from qmp import Client

c = Client(sys.argv[1] + "/p.qmp")
c.get("object-add", **{"qom-type": "secret", "id": "x", "data": "x"})
options = {"driver": "qcow2",
           "encrypt": {"format": "luks", "state": "active", "new-secret": "x"}}
c.refuses("Node 'node1' is read-only", "x-blockdev-amend", job_id="j", node_name="node1",
          options=options)
c.get("x-blockdev-amend", job_id="j", node_name="node0", options=options)
c.until_status("concluded")
assert "not encrypted with LUKS" in c.get("query-jobs")[0]["error"]
PY
