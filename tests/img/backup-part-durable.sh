#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If the host loses power, a backup goes on only with what is there: before the manifest says how
# much was done, all of that is written, and synced after it was; later it is not written again.
# A backup into a file, and one in place.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"
requires strace -f -y -e trace=pwritev2 true

cat > judge.py <<'END'
import os, re, sys
target = os.path.realpath(sys.argv[1])
pending, syncs = {}, {}
written, durable = [], 0        # offsets, in the order of writes; so many of them
said, records, limit = None, 0, 0
for line in open("trace"):
    pid, rest = line.split(None, 1)
    if "sync(" in rest and "<%s>" % target in rest:
        syncs[pid] = len(written)
    if rest.endswith("<unfinished ...>\n"):
        pending[pid] = rest[:-len("<unfinished ...>\n")]
        continue
    if rest.startswith("<..."):
        rest = pending.pop(pid) + rest.split("resumed>", 1)[1]
    if rest.startswith(("pwrite", "fallocate")) and "<%s>" % target in rest:
        at = int(re.search(r", (\d+)(?:, [\w|]+)? *\) += ", rest).group(1))
        assert at >= limit, "written again: %d" % at
        written.append(at)
    elif re.match(r"f(data)?sync\(", rest) and "<%s>" % target in rest:
        durable = max(durable, syncs.pop(pid))
    elif rest.startswith("pwrite") and r'\"generations\"' in rest:
        said = re.search(r'\\"done\\": (\d+)', rest)
    elif rest.startswith("rename") and "manifest.json" in rest and said:
        limit = int(said.group(1))
        assert limit > 0 and not [at for at in written[durable:] if at < limit], limit
        # All of it was written: the disk has no zeros.
        assert sum(at < limit for at in written) > 0
        records += 1
print(records, "records, the last of", limit)
assert records > 0 and durable == len(written)
END

sample 1 file place
make_image a.qcow2 40M
io a.qcow2 'write -P 1 0 40M'
truncate -s 40M place.raw
for what in "${sample[@]}"; do
  target=$([ $what = file ] && echo backups/000001.raw.part || echo place.raw)
  options=$([ $what = file ] && echo "-O raw" || echo "--onto place.raw")
  # shellcheck disable=SC2086
  strace -f -y -s 20000 -o trace \
    -e trace=pwrite64,pwritev,pwritev2,fallocate,fsync,fdatasync,?rename,renameat,renameat2 \
    "$IMG" backup -q -r 3M $options a.qcow2 backups
  "$python" judge.py "$target"
  rm -r backups
done
