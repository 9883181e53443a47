#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If the host loses power at any moment, the manifest names only what is there: before it is
# replaced, files of the repository are synced that were written, and the directory is in which
# they have got their names; a file is removed, and the bitmap of the last backup, when no
# manifest that is on the disk needs it any more.  Backups of all kinds, and merges.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
requires strace -f -y -e trace=pwritev2 true
cd ours

cat > judge.py <<'END2'
import os, re, sys
repository, image = (os.path.realpath(p) for p in sys.argv[1:3])
dirty, unsynced_names, manifests, removed = set(), False, 0, 0
pending = {}

def names(text):
    return set(re.findall(r"\d{6}\.(?:qcow2|raw)(?!\.part)", text))

# What the manifest on the disk needs, and that which was written last.
needed = names(open("before").read())
written = needed

def path(text):
    found = re.match(r"\d+<([^>]*)>", text)
    return found.group(1) if found else ""

def done(call, arguments):
    global unsynced_names, manifests, removed, needed, written
    where = path(arguments)
    if "nbdkit-qcow2-img backup" in arguments and where.startswith(repository + "/#"):
        written = names(arguments)
    if call in ("write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate",
                "fallocate"):
        if where.startswith(repository + "/") and "manifest.json" not in where:
            dirty.add(where)
        # The new base is known by name in the manifest before the old one goes.
        if where == image:
            assert not unsynced_names, "the image changes before the names are durable"
    elif call in ("fsync", "fdatasync"):
        dirty.discard(where)
        if where == repository:
            unsynced_names = False
            needed = written
    elif call in ("renameat", "renameat2", "rename", "linkat", "link"):
        if "manifest.json" in arguments:
            assert not dirty, dirty
            assert not unsynced_names, "a generation has no durable name"
            manifests += 1
        # (Others are of files that are about to replace one.)
        unsynced_names |= bool(re.search(r'/?(\d{6}\.\w+|manifest\.json)"[^"]*$', arguments))
    elif call in ("unlink", "unlinkat"):
        assert not names(arguments) & (needed | written), arguments
        removed += 1

for line in open("trace"):
    pid, rest = line.split(None, 1)
    if rest.endswith("<unfinished ...>\n"):
        pending[pid] = rest[:-len("<unfinished ...>\n")]
        # (What was begun may have been done.)
        if "sync(" in rest:
            continue
    if rest.startswith("<..."):
        rest = pending.pop(pid) + rest.split("resumed>", 1)[1]
        if "sync(" not in rest:
            continue
    found = re.match(r"(\w+)\((.*)", rest)
    if found and " = -1 " not in rest:
        done(*found.groups())
print(manifests, "manifests,", removed, "files removed")
assert manifests >= int(sys.argv[3]) and removed >= int(sys.argv[4])
END2

calls=write,writev,pwrite64,pwritev,pwritev2,ftruncate,fallocate,fsync,fdatasync
calls+=",?rename,renameat,renameat2,?link,linkat,?unlink,unlinkat"
# traced MANIFESTS REMOVED OPTION...: at least so many.
traced ()
{
  local manifests="$1" removed="$2"
  shift 2
  cat backups/manifest.json > before 2>/dev/null || :
  strace -f -y -s 20000 -o trace -e "trace=$calls" "$IMG" backup -q "$@" a.qcow2 backups
  "$python" judge.py backups a.qcow2 "$manifests" "$removed"
}
make_image a.qcow2 8M
for options in "1 0" "1 0" "1 0 -c" "1 0 --verify" "5 2 --keep 3" "1 0 --full -O raw" "1 0" \
               "4 2 --keep 2"; do
  io a.qcow2 'write -P 1 1M 1M' "write -P 2 $((RANDOM % 7))M 100k"
  # shellcheck disable=SC2086
  traced $options
done
img restore -q --verify backups
