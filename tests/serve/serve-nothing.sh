#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# serve=false does everything else and serves nothing; info= describes the image as it is
# after all changes, and replaces no file of the disk.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
cd "$tmp"

# about PYTHON-EXPRESSION: it is true of the description i.
about ()
{
  "$python" -c 'import json, sys
i = json.load(open("i"))
assert eval(sys.argv[1]), i' "$1"
}

# Clients are refused, without a name of the host; the list of exports is empty.
make_image a.qcow2 1M
start_nbdkit a.qcow2 serve=false
refused_connection 'serve=false was given'
nbdinfo --list "$uri" > list || :
if grep -q '^export=' list; then fail "there is an export"; fi
stop_nbdkit
cp a.qcow2 before.qcow2
"$NBDKIT" -U - "$PLUGIN" a.qcow2 serve=false resize=2M --run true
[ "$(virtual_size a.qcow2)" = 2097152 ]

# After changes, of a new image too; served or not.
for serve in true false; do
  rm -f n.qcow2
  "$NBDKIT" -U - "$PLUGIN" n.qcow2 create=3M cluster-size=4K bitmap-add=b info=i \
    serve=$serve --run true
  about 'i["virtual-size"] == 3 << 20 and i["cluster-size"] == 4096'
  about '[b["name"] for b in i["format-specific"]["data"]["bitmaps"]] == ["b"]'
  "$NBDKIT" -U - "$PLUGIN" n.qcow2 resize=4M bitmap-remove=b snapshot-create=s info=i \
    serve=$serve --run true
  about 'i["virtual-size"] == 4 << 20 and [s["name"] for s in i["snapshots"]] == ["s"]'
  about '"bitmaps" not in i["format-specific"]["data"]'
done
"$NBDKIT" -U - "$PLUGIN" n.qcow2 info=i --run 'nbdinfo --size "$uri"' | grep 4194304
# What is refused is not created, nor changed.
mkdir directory
refused 'info=.*not a file, pipe' m.qcow2 create=1M info=directory
[ ! -e m.qcow2 ]
refused_untouched 'info=.*not a report' n.qcow2 resize=8M info=n.qcow2

# An earlier description is replaced, in both forms.  A file of the disk is not, even if it
# looks like one, or is empty.
"$NBDKIT" -U - "$PLUGIN" n.qcow2 info=i info-chain=true serve=false --run true
about 'i[0]["virtual-size"] == 4 << 20'
"$NBDKIT" -U - "$PLUGIN" n.qcow2 info=i serve=false --run true
about 'i["virtual-size"] == 4 << 20'
cp i base.raw
: > empty.raw
make_image o.qcow2 1M backing_file=base.raw,backing_fmt=raw
make_image p.qcow2 1M backing_file=o.qcow2,backing_fmt=qcow2
make_image d.qcow2 1M data_file=d.raw
: > d.raw
for serve in true false; do
  refused 'info=.*file of the disk' o.qcow2 info=base.raw serve=$serve
  refused 'info=.*file of the disk' p.qcow2 info=base.raw serve=$serve
  refused 'info=.*file of the disk' d.qcow2 info=d.raw serve=$serve
done
cmp i base.raw
[ ! -s d.raw ]
echo precious > q
refused 'info=.*not a report' n.qcow2 info=q serve=false
[ "$(cat q)" = precious ]

refused 'stats= and info= name the same file' n.qcow2 info=x stats=x
refused 'serve=false cannot be used with stats=' n.qcow2 serve=false stats=x
refused 'info-chain=true requires info=' n.qcow2 info-chain=true

# Hostile: too much for an untrusted image.
cp before.qcow2 h.qcow2
truncate -s 9M h.qcow2
header_patch h.qcow2 60 I 300 64 Q 8388608
refused 'more than 256 snapshots' h.qcow2 info=i serve=false untrusted=true
