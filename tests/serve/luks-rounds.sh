#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The program that makes a LUKS header chooses how long testing a passphrase takes.  This
# time is limited, over all key slots together, more strictly with untrusted=true; a
# header that exceeds the limit is refused at once.  SIGTERM ends the server also while it
# tests a passphrase.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
cd "$tmp"
"$NBDKIT" -U - "$PLUGIN" disk.qcow2 create=1M encrypt=luks passphrase=right iter-time=1 \
  --run :

# header FILE SLOTS ITERATIONS DIGEST-ITERATIONS: a disk with a header that asks for that.
header ()
{
  local at i

  cp disk.qcow2 "$1"
  at=$(LC_ALL=C grep -obUaP 'LUKS\xba\xbe' "$1" | head -n 1 | cut -d : -f 1)
  header_patch "$1" $((at + 164)) I "$4"
  for ((i = 0; i < $2; i++)); do
    header_patch "$1" $((at + 208 + 48 * i)) I $((0x00ac71f3)) \
      $((at + 212 + 48 * i)) I "$3"
  done
}

# Each iteration is two rounds, for a key of twice the hash, and one for the digest.
header slow.qcow2 8 $((1 << 24)) $((1 << 25))
refused 'slow.qcow2: LUKS header: .* takes 536870912 rounds .* untrusted' slow.qcow2 \
  untrusted=true passphrase=right
header many.qcow2 2 $((1 << 24)) 1
refused 'many.qcow2: LUKS header: .* takes 67108866 rounds .* more than 67108864' \
  many.qcow2 untrusted=true passphrase=right
header trusted.qcow2 8 $((1 << 24)) $(((1 << 25) + 1))
refused 'trusted.qcow2: LUKS header: .*slots 0 to 7 takes 536870920 rounds of sha256' \
  trusted.qcow2 passphrase=right
header one.qcow2 1 4294967295 1
refused 'one.qcow2: LUKS header: .*slots 0 to 0 takes 8589934591 rounds of sha256' \
  one.qcow2 passphrase=right
# In a directory, too.
mkdir images
cp slow.qcow2 images/disk.qcow2
start_nbdkit dir=images untrusted=true passphrase=right
if nbdinfo --size "nbd+unix:///disk.qcow2?socket=$sock"; then
  fail "was served"
fi
grep 'LUKS header: .* untrusted' "$tmp/main.log"
stop_nbdkit

# Those that are in use are far below.
header genuine.qcow2 1 1000 1000
refused 'wrong passphrase' genuine.qcow2 untrusted=true passphrase=wrong
"$NBDKIT" -U - "$PLUGIN" disk.qcow2 untrusted=true passphrase=right --run :

# has_worked PID: for half a second.  Nothing else takes so long here.
has_worked ()
{
  [ "$(cut -d ' ' -f 14 "/proc/$1/stat")" -gt 50 ]
}

# stops PARAMETER...: the passphrase would be tried for minutes; SIGTERM ends that.
stops ()
{
  local pid status=0

  prlimit --cpu=30 "$NBDKIT" -f -U "$sockdir/s" "$PLUGIN" "$@" </dev/null >stops.log 2>&1 &
  pid=$!
  helper_pids+=($pid)
  await -p $pid has_worked $pid
  kill -TERM $pid
  wait $pid || status=$?
  [ $status -eq $((128 + 15)) ] || fail "status $status: $*"
}

stops slow.qcow2 passphrase=wrong
stops slow.qcow2 passphrase=wrong flatten=true
stops new.qcow2 create=auto backing-file=slow.qcow2 backing-format=qcow2 passphrase=wrong
# (Making the image has not needed the passphrase.)
qemu-img info new.qcow2 | grep -q "backing file: slow.qcow2"
[ -z "$(ls -A | grep qcow2-new || :)" ]
