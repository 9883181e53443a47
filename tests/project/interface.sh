#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Programs may depend on what tests/interface lists: parameters, options, keys of JSON with
# their types, codes.  NEWS says which version may change them.  All of it is there, and
# there is nothing that is not listed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
PLUGIN=$(realpath "$PLUGIN")
cd "$tmp"
mkdir json

img="$abs_top_builddir/img/nbdkit-qcow2-img"
validate ()
{
  "$img" validate "$@" > validate.out || [ $? = 1 ]
}

# --- documents with as many keys as possible ---

make_image base.qcow2 1M
make_image image.qcow2 1M backing_file=base.qcow2,backing_fmt=qcow2,extended_l2=on
qemu-io -f qcow2 -c 'write -P 1 0 64k' -c 'write -c -P 2 64k 64k' -c 'write -z 128k 64k' \
  image.qcow2
qemu-img snapshot -c s image.qcow2
qemu-img bitmap --add image.qcow2 b
make_image data.qcow2 1M data_file=data.raw
qemu-img create -q -f qcow2 --object secret,id=s,data=x \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 luks.qcow2 1M
"$img" map --output=json image.qcow2 > json/map.json
"$img" info --output=json --backing-chain image.qcow2 > json/info.1.json
"$img" info --output=json luks.qcow2 > json/info.2.json
"$img" info --output=json data.qcow2 > json/info.3.json
# (What is said of the file is only complete for a device.)
cp image.qcow2 device
truncate -s 8M device
printf '%1024s' text > data
export NBDKIT PLUGIN
# shellcheck disable=SC2016
"$NBDKIT" -U - file device --run '
  "$NBDKIT" -U - "$PLUGIN" "$uri" backing=base.qcow2 backing-format=qcow2 watermark=1M \
    lock=false stats=json/stats.json --run "
      nbdcopy \"\$uri\" null:
      nbdcopy data \"\$uri\""'
# A leak, and a wrong reference count.
cp base.qcow2 damaged.qcow2
truncate -s $((301 * 65536)) damaged.qcow2
header_patch damaged.qcow2 $((0x20000 + 2 * 300)) H 1
header_patch damaged.qcow2 $((0x20000)) H 0
"$NBDKIT" -U - "$PLUGIN" damaged.qcow2 check=full check-report=json/check-report.json \
  --run true || :
validate --json json/validate.json --policy strict --check full --hash --shard 1/1 \
  base.qcow2 image.qcow2

"$img" backup image.qcow2 backups
"$img" backup --output=json image.qcow2 backups > json/backup.1.json
"$img" backup --full --output=json image.qcow2 backups > json/backup.2.json
"$img" restore --list --output=json backups > json/restore.1.json
"$img" restore --output=json backups restored > json/restore.2.json
"$img" restore --verify --output=json backups > json/restore.3.json
truncate -s 1M onto.raw
"$img" backup --onto onto.raw --output=json image.qcow2 onto > json/backup.3.json
cp backups/manifest.json json/manifest.1.json
cp onto/manifest.json json/manifest.2.json

# Each event, but those that need a damaged image or a full disk.
cp base.qcow2 logged.qcow2
start_nbdkit logged.qcow2 snapshot-create=s control="$sockdir/qmp" log="$tmp/log" \
  log-format=json
nbdinfo --size "$uri"
nbdinfo --size "nbd+unix:///none?socket=$sock" || :
"$python" - "$srcdir/lib" "$sockdir/qmp" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
from qmp import Client

c = Client(sys.argv[2])
c.get("x-blockdev-amend", job_id="j", node_name="disk",
      options={"driver": "qcow2", "encrypt": {"format": "qcow"}})
c.until_status("concluded")
PY
stop_nbdkit
"$python" - log > json/log.json <<'PY'
import json
import sys
lines = [json.loads(line) for line in open(sys.argv[1])]
print(json.dumps({line["event"]: line for line in lines}))
PY

# --- what there is ---

"$python" "$srcdir/lib/interface.py" "$NBDKIT" "$PLUGIN" "$srcdir/.." json > found
diff -u "$srcdir/interface" found || fail "if it was added, list it in tests/interface;
if it is gone or was changed, read NEWS"
