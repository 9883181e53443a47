#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The models of tests/models hold in all orders of steps, and fail with each mistake that
# they name.

. "$srcdir/lib/functions.sh"

requires spin -V
requires gcc --version

# verify OPTION...: what spin's verifier finds, in pan.log: first what must never be, then
# what must be at last.  Fails if it finds an error, or has not looked at everything.
verify ()
{
  local flags

  for flags in "-DSAFETY -DNOCLAIM" -DNFAIR=4; do
    rm -f pan*
    spin -DROUNDS=1 "$@" -a "$srcdir/models/gate.pml" > spin.log
    # shellcheck disable=SC2086
    gcc -O1 -w $flags -o pan pan.c
    ./pan -m400000 $([ "$flags" != -DNFAIR=4 ] || echo -a -f) > pan.log
    grep -q 'errors: 0' pan.log && ! grep -q 'max search depth' pan.log || return
  done
}

mkdir "$tmp/models"
cd "$tmp/models"
verify || fail "the gate: $(cat pan.log)"
for mistake in GATE_FIRST VIEW_FIRST STAMP_FIRST NO_DRAIN ONE_EPOCH; do
  ! verify -D$mistake || fail "nobody notices $mistake"
done

# Readers end, even if the change never does.  (That it does not is an invalid end.)
rm -f pan*
spin -DROUNDS=1 -DSTUCK -a "$srcdir/models/gate.pml" > spin.log
gcc -O1 -w -DNFAIR=4 -o pan pan.c
./pan -m400000 -a -f > pan.log
grep -q 'errors: 0' pan.log || fail "readers wait for a change: $(cat pan.log)"
