#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Flattening that is interrupted by a limit of the file size, by a signal, or by SIGKILL
# at any of its writes: the image shows the same data each time, and the next run copies
# only the rest.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires strace -f -e trace=pwrite64 true

random_file "$tmp/base.raw" $((40 << 20))
make_image "$tmp/fresh.qcow2" 40M "backing_file=base.raw,backing_fmt=raw"
img="$tmp/a.qcow2"

# flatten: its status; what was copied, in bytes, into $copied ("" if it did not end
# well).
flatten ()
{
  local status=0

  "$NBDKIT" -v -U - "$PLUGIN" "$img" flatten=true --run true 2> "$tmp/log" || status=$?
  grep -v debug "$tmp/log" || :
  copied="$(sed -n 's/.*: flattened, \([0-9]*\) bytes were copied$/\1/p' "$tmp/log")"
  return $status
}

is_overlay ()
{
  qemu-img info -U -f qcow2 "$img" | grep -q 'backing file:'
}

# Space runs out in the middle.  (ulimit -f counts KiB; EFBIG is like ENOSPC.)
cp "$tmp/fresh.qcow2" "$img"
(ulimit -f 20000; trap '' XFSZ; flatten) && fail "there is no space for this"
grep -q 'flattening failed after .*; the next start with flatten=true resumes it' \
  "$tmp/log"
# All the threads have met it, and one says so.
[ "$(grep -c 'no cluster is free' "$tmp/log")" -eq 1 ]
is_overlay
check_clean "$img"
same_as_raw "$img" "$tmp/base.raw"
used=$(qemu-img check -f qcow2 --output=json "$img" |
       sed -n 's/.*"allocated-clusters": \([0-9]*\).*/\1/p')
[ "$used" -gt 100 ]
[ "$used" -lt 400 ]
flatten
echo "$copied bytes were left to copy"
[ "$copied" = $(((40 << 20) - used * 65536)) ]
is_overlay && fail "still an overlay"
check_clean "$img"
same_as_raw "$img" "$tmp/base.raw"

# A new image goes again, so there is no next time.
(ulimit -f 20000; trap '' XFSZ
 "$NBDKIT" -U - "$PLUGIN" "$tmp/new.qcow2" create=auto backing-file=base.raw \
   backing-format=raw flatten=true --run true 2> "$tmp/log") && fail "there is no space"
cat "$tmp/log"
grep -q 'flattening failed after [0-9]* of [0-9]* bytes of the disk$' "$tmp/log"
[ "$(grep -c 'no cluster is free' "$tmp/log")" -eq 1 ]
[ ! -e "$tmp/new.qcow2" ]

# The user stops it (each write takes its time): in good order.
cp "$tmp/fresh.qcow2" "$img"
strace -f -qq -o /dev/null -e trace=pwritev2 -e inject=pwritev2:delay_exit=1000000 \
  "$NBDKIT" -f -U - "$PLUGIN" "$img" flatten=true --run 'echo SERVED' > "$tmp/out" 2>&1 &
tracer=$!
helper_pids+=("$tracer")
has_grown ()
{
  [ "$(file_size "$img")" -ge 4000000 ]
}
await -p "$tracer" has_grown
read -r server < "/proc/$tracer/task/$tracer/children" || :
kill -TERM "$server"
wait $tracer && fail "was not stopped"
helper_pids=()
cat "$tmp/out"
grep -q 'flattening was stopped after' "$tmp/out"
grep -q SERVED "$tmp/out" && fail "was served"
is_overlay
check_clean "$img"
same_as_raw "$img" "$tmp/base.raw"
flatten
[ "$copied" -gt 0 ]
[ "$copied" -lt $((40 << 20)) ]
same_as_raw "$img" "$tmp/base.raw"

# SIGKILL at each of its writes and syncs, as each thread counts them.
truncate -s 9M "$tmp/base.raw"
make_image "$tmp/fresh.qcow2" 9M "backing_file=base.raw,backing_fmt=raw"
total=0
for call in pwrite64 pwritev2 fdatasync ftruncate; do
  for ((n = 1; n < 100; ++n)); do
    cp "$tmp/fresh.qcow2" "$img"
    status=0
    strace -f -qq -o /dev/null -e trace=$call -e inject=$call:signal=KILL:when=$n \
      "$NBDKIT" -U - "$PLUGIN" "$img" flatten=true --run true || status=$?
    check_leaks_only "$img"
    same_as_raw "$img" "$tmp/base.raw"
    if [ $status -eq 0 ]; then break; fi
    if is_overlay; then
      flatten
      is_overlay && fail "still an overlay"
      check_leaks_only "$img"
      same_as_raw "$img" "$tmp/base.raw"
    fi
  done
  [ "$status" -eq 0 ]
  total=$((total + n - 1))
done
echo "killed at $total places"
[ $total -gt 8 ]
