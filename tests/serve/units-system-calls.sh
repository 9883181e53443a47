#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The system call filter of our systemd units allows all that the plugin needs: strace
# lists the system calls of servers that do everything that the plugin can do with images
# on the host.
#
# WORKLOADS="serve/NAME.sh ..." in the environment also lists those of the servers that these
# tests start (without what only they need, such as TCP).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/units.sh"
requires_tools
requires systemd-analyze syscall-filter @default
requires strace -D -f -qq -c -U name true

images="$tmp/images"
calls="$tmp/calls"
mkdir "$images" "$calls"
# A server that counts: strace writes when the server has ended.
cat >"$tmp/nbdkit" <<END
#!/bin/sh
exec strace -D -f -qq -c -U name -o "$calls/\$\$" "\$@"
END
chmod +x "$tmp/nbdkit"

# session SERVICE IMAGE PARAMETERS PYTHON: one server, and one client.
session ()
{
  local pid

  export QCOW2_PARAMETERS="$3"
  start_unit "$1" "$images" "$2" "$tmp/nbdkit"
  pid=${server_pid[unit]}
  [ "$1" = nbdkit-qcow2@ ] || uri="nbd+unix:///$2?socket=$sock"
  nbdsh_run -c "$4"
  stop_nbdkit unit
  await test -s "$calls/$pid"
}

use='
import random
h.set_strict_mode(0)
size = h.get_size()
for i in range(40):
    at = random.randrange(size - 300000)
    h.pwrite(random.randbytes(1000) * 200, at, 0 if i % 4 else nbd.CMD_FLAG_FUA)
    h.pread(300000, at)
    h.trim(262144, random.randrange(size - 262144) & ~65535)
    h.zero(100000, random.randrange(size - 100000), 0 if i % 2 else nbd.CMD_FLAG_NO_HOLE)
    h.cache(100000, at)
h.flush()
'

session nbdkit-qcow2@ a "create=8M stats=$tmp/stats" "$use"
session nbdkit-qcow2@ a "snapshot-create=s resize=+1M check=full check-report=$tmp/report" "$use"
session nbdkit-qcow2@ a "snapshot-apply=s snapshot-delete=s bitmap-add=b cache=none" "$use"
session nbdkit-qcow2@ b "create=auto backing-file=a backing-format=qcow2" "$use"
session nbdkit-qcow2@ b "copy-on-read=true detect-zeroes=unmap" "$use"
session nbdkit-qcow2@ b "flatten=true preallocation=full resize=+1M" "$use"
session nbdkit-qcow2@ c "create=8M compress=on compression-type=zstd" "$use"
session nbdkit-qcow2@ c "compress=on check=repair checkpoint-interval=1" "$use"
session nbdkit-qcow2@ d "create=8M encrypt=luks iter-time=1 passphrase=x" "$use"
session nbdkit-qcow2@ e "create=8M data-file=$images/data preallocation=falloc" "$use"
session nbdkit-qcow2@ f "create=8M lazy-refcounts=true on-enospc=wait" "$use"
session nbdkit-qcow2-dir f "" "$use"
session nbdkit-qcow2@ f "untrusted=true check=full" 'h.pread(1000, 0)'

for test in ${WORKLOADS:-}; do
  printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$tmp/nbdkit" "$NBDKIT" >"$tmp/traced"
  chmod +x "$tmp/traced"
  NBDKIT="$tmp/traced" bash "$srcdir/$test" >"$tmp/test.log" 2>&1 ||
    echo "$test: status $?"
done

filter_allows >"$tmp/allowed"
# (What strace prints around the names.)
cat "$calls"/* | grep -E '^[a-z_0-9]+$' | grep -vx -e syscall -e total | sort -u >"$tmp/used"
wc -l <"$tmp/used"
if comm -23 "$tmp/used" "$tmp/allowed" | grep .; then fail "the filter is too narrow"; fi
# The filter can be trusted to be one.
if grep -qx -e bpf -e ptrace -e mount -e setuid "$tmp/allowed"; then
  fail "the filter is too wide"
fi
