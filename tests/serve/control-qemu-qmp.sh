#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU's own client of QMP, the package qemu.qmp, works with the control socket: a script of
# qmp-shell with each kind of command, and a program that hears each event, while commands
# of several clients are under way.
#
# The package is in build/qemu-qmp (scripts/test puts it there).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdkit --filter=error null --version
package="$srcdir/../build/qemu-qmp/bin"
[ -x "$package/qmp-shell" ] || skip "no qemu.qmp in build/qemu-qmp: scripts/test puts it there"

d="$tmp/images" qmp="$sockdir/qmp"
mkdir "$d"
qemu-img create -q -f qcow2 "$d/b0.qcow2" 8M
io "$d/b0.qcow2" 'write -P 1 0 4M'
for i in 1 2 3; do
  qemu-img create -q -f qcow2 -b "$d/b$((i - 1)).qcow2" -F qcow2 "$d/b$i.qcow2"
  io "$d/b$i.qcow2" "write -P $((i + 1)) ${i}M 1M"
done
qemu-img create -q -f qcow2 "$d/moved.qcow2" 16M
qemu-img convert -f qcow2 -O raw "$d/b3.qcow2" "$tmp/model"
truncate -s 16M "$tmp/model"

# --- qmp-shell: commands in its own syntax.

start_nbdkit control="$qmp" "$d/b3.qcow2"
cat > "$tmp/script" <<END
query-version
query-commands
query-block
query-block-exports
query-blockstats query-nodes=true
query-named-block-nodes flat=true
query-jobs
query-block-jobs
block_resize device=disk size=16777216
block-dirty-bitmap-add node=node0 name=monday persistent=true granularity=65536
block-dirty-bitmap-add node=node0 name=tuesday persistent=true disabled=true
block-dirty-bitmap-enable node=node0 name=tuesday
block-dirty-bitmap-disable node=node0 name=tuesday
block-dirty-bitmap-merge node=node0 target=monday bitmaps=["tuesday"]
block-dirty-bitmap-clear node=node0 name=monday
transaction(
blockdev-snapshot-internal-sync device=disk name=now
block-dirty-bitmap-disable node=node0 name=monday
block-dirty-bitmap-add node=node0 name=wednesday persistent=true
)
blockdev-snapshot-internal-sync device=disk name=later
blockdev-snapshot-delete-internal-sync device=disk name=now
blockdev-snapshot-delete-internal-sync device=disk name=later
block-dirty-bitmap-remove node=node0 name=monday
block-dirty-bitmap-remove node=node0 name=tuesday
block-dirty-bitmap-remove node=node0 name=wednesday
blockdev-snapshot-sync device=disk snapshot-file=$d/new.qcow2 snapshot-node-name=new
change-backing-file device=disk image-node-name=new backing-file=$d/b3.qcow2
blockdev-add driver=raw node-name=gone file={"driver":"file","filename":"$tmp/model"} read-only=true
blockdev-del node-name=gone
block-stream device=disk job-id=slow base-node=node3 speed=1
job-pause id=slow
query-block-jobs
job-resume id=slow
block-job-pause device=slow
block-job-resume device=slow
block-job-set-speed device=slow speed=2
job-cancel id=slow
query-jobs
END
"$package/qmp-shell" "$qmp" < "$tmp/script" > "$tmp/out"
cat "$tmp/out"
# (A job that ends has an error of its own in the list of jobs.)
! grep -E '\{"error":|Traceback|Error' "$tmp/out" || fail "a command failed"
# All of a transaction has one answer.
commands=$(awk '/\($/ { inside = 1 } !inside { n++ } /^\)$/ { inside = 0; n++ }
  END { print n }' "$tmp/script")
[ "$(grep -c '"return":' "$tmp/out")" = "$commands" ] || fail "not $commands answers"
stop_nbdkit
check_clean "$d/new.qcow2"
qemu-img compare -q -f qcow2 -F raw "$d/new.qcow2" "$tmp/model"

# --- A program: every event.

qemu-img create -q -f qcow2 -b "$d/new.qcow2" -F qcow2 "$d/top.qcow2"
truncate -s 16M "$d/full.raw"
nbdkit --exit-with-parent -f -U "$sockdir/full" --filter=error file "$d/full.raw" \
  error=ENOSPC error-pwrite-rate=100% error-zero-rate=100% error-trim-rate=100% &
helper_pids+=($!)
await -p "$!" listens "$sockdir/full"
start_nbdkit control="$qmp" "$d/new.qcow2"
"$package/python" - "$qmp" "$sockdir/full" "$d/moved.qcow2" "$d/top.qcow2" <<'PY'
import asyncio
import sys
from qemu.qmp import ExecuteError, QMPClient

qmp, full, moved, top = sys.argv[1:]
seen = set()

async def until(listener, name, **data):
    async for event in listener:
        seen.add(event["event"])
        if event["event"] == name and data.items() <= event.get("data", {}).items():
            return event["data"]

async def main():
    client, other = QMPClient("one"), QMPClient("two")
    await client.connect(qmp)
    await other.connect(qmp)
    with client.listener() as events, other.listener("SHUTDOWN") as last:
        try:
            await client.execute("job-pause", {"id": "nothing"})
            assert False
        except ExecuteError as e:
            assert str(e) == "Job not found", e
        await client.execute("blockdev-add", {
            "driver": "raw", "node-name": "full",
            "file": {"driver": "nbd", "server": {"type": "unix", "path": full}}})
        mirror = {"device": "disk", "sync": "full"}
        await client.execute("blockdev-mirror", dict(mirror, **{
            "job-id": "failing", "target": "full", "on-target-error": "stop"}))
        await until(events, "BLOCK_JOB_ERROR", action="stop")
        await client.execute("job-cancel", {"id": "failing"})
        await until(events, "BLOCK_JOB_CANCELLED", device="failing")
        await until(events, "JOB_STATUS_CHANGE", id="failing", status="null")
        await client.execute("blockdev-add", {
            "driver": "qcow2", "node-name": "top", "backing": None,
            "file": {"driver": "file", "filename": top}})
        await client.execute("blockdev-snapshot", {"node": "node0", "overlay": "top"})
        stream = {"device": "disk", "job-id": "s", "base-node": "node1",
                  "auto-finalize": False, "auto-dismiss": False}
        # Commands of both clients, without waiting for answers.
        answers = await asyncio.gather(
            client.execute("block-stream", stream),
            *[c.execute("query-blockstats") for c in [client, other] * 20])
        assert len(answers) == 41
        await until(events, "BLOCK_JOB_PENDING", id="s")
        await other.execute("job-finalize", {"id": "s"})
        await until(events, "BLOCK_JOB_COMPLETED", device="s")
        await until(events, "JOB_STATUS_CHANGE", id="s", status="concluded")
        await client.execute("job-dismiss", {"id": "s"})
        await client.execute("blockdev-add", {
            "driver": "qcow2", "node-name": "moved",
            "file": {"driver": "file", "filename": moved}})
        await client.execute("blockdev-mirror",
                             dict(mirror, **{"job-id": "m", "target": "moved"}))
        await until(events, "BLOCK_JOB_READY", device="m")
        await client.execute("job-complete", {"id": "m"})
        await until(events, "BLOCK_JOB_COMPLETED", device="m")
        await until(events, "JOB_STATUS_CHANGE", id="m", status="null")
        assert await client.execute("quit") == {}
        assert (await last.get())["data"] == {"guest": False, "reason": "host-qmp-quit"}
        await until(events, "BLOCK_EXPORT_DELETED", id="disk")
    for c in client, other:
        try:
            await c.disconnect()
        except EOFError:
            pass
    assert seen == {"JOB_STATUS_CHANGE", "BLOCK_JOB_ERROR", "BLOCK_JOB_CANCELLED",
                    "BLOCK_JOB_PENDING", "BLOCK_JOB_COMPLETED", "BLOCK_JOB_READY",
                    "SHUTDOWN", "BLOCK_EXPORT_DELETED"}, seen

asyncio.run(main())
PY
await_nbdkit
check_clean "$d/moved.qcow2"
qemu-img compare -q -f qcow2 -F raw "$d/moved.qcow2" "$tmp/model"
