#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img that is stopped by a signal, at any time, ends by that signal, and leaves
# the source and what existed under the name of the target as they were, and nothing else:
# no file, no process.
#
# Environment: SEED, ROUNDS.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"

cd ours

# Slow enough that signals come in the middle.
head -c 40M /dev/urandom > disk.raw
img convert -O qcow2 disk.raw disk.qcow2
img create -q -f qcow2 -b disk.qcow2 -F qcow2 over.qcow2
before=$(fingerprint disk.qcow2)
echo "what existed" > kept
hits=0

# Milliseconds: signals come within this time, which follows how fast this machine is.
within=350

# interrupt ARGUMENT...: after a random time.
interrupt ()
{
  local status=0 signal delay
  any signal TERM INT HUP
  printf -v delay 0.%03d $((RANDOM % within))

  # In a session of its own: what is left has its number.
  setsid "$IMG" "$@" \
    > ../out 2> ../err < /dev/null &
  helper_pids+=($!)
  sleep "$delay"
  # (A shell's background job ignores SIGINT.)
  [ "$signal" != INT ] || signal=TERM
  kill -s "$signal" $! || :
  wait $! || status=$?
  cat ../err
  # 143 or 129: by the signal, 0: it was faster.
  case "$status" in
    143|129) hits=$((hits + 1)) within=$((within < 350 ? within * 3 / 2 : within)) ;;
    0) within=$((within > 30 ? within * 2 / 3 : within)) ;;
    *) fail "exit status $status" ;;
  esac
  if pgrep -s $! ; then fail "a process is left"; fi
  helper_pids=()
  [ "$status" = 0 ] || [ ! -s ../err ] || fail "said something"
  (cd .. && nothing_left)
  [ "$before" = "$(fingerprint disk.qcow2)" ]
}

# kept: what existed is there, or the new image is; if so, makes the former again.
kept ()
{
  if ! grep -qs "^what existed" kept; then
    check_clean kept
    echo "what existed" > kept
  fi
}

for ((i = 0; i < ${ROUNDS:-2}; ++i)); do
  interrupt convert -O qcow2 disk.qcow2 kept
  kept
  rm -f new.raw
  interrupt convert disk.qcow2 new.raw
  [ ! -e new.raw ] || cmp new.raw disk.raw
  interrupt create -f qcow2 -o preallocation=full kept 50M
  kept
  interrupt compare disk.qcow2 disk.raw
  interrupt resize --preallocation=full over.qcow2 +2M
  check_clean over.qcow2
  # These are resumed.
  rm -f base2.qcow2 over2.qcow2
  img create -q -f qcow2 base2.qcow2 50M
  img create -q -f qcow2 -b base2.qcow2 -F qcow2 over2.qcow2
  img convert -n -O qcow2 disk.raw over2.qcow2
  interrupt commit over2.qcow2
  img compare -q over2.qcow2 disk.raw
  interrupt commit over2.qcow2
  img compare -q over2.qcow2 disk.raw
  img create -q -f qcow2 -b disk.qcow2 -F qcow2 over2.qcow2
  interrupt rebase -b '' over2.qcow2
  img compare -q over2.qcow2 disk.raw
  img rebase -b '' over2.qcow2
  img compare -q over2.qcow2 disk.raw
done
[ "$hits" -ge 3 ] || fail "nothing was interrupted"
