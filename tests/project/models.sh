#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The models of tests/models hold in all orders of steps, and fail with each mistake that
# they name.  The short suite looks only at the gate, and nobody but the changes moves the
# epochs on.

. "$srcdir/lib/functions.sh"

requires spin -V
requires gcc --version

# verify MODEL OPTION...: what spin's verifier finds, in pan.log: first what must never be,
# then what must be at last.  Fails if it finds an error, or has not looked at everything.
verify ()
{
  local flags model="$1"
  local -a options

  shift
  for flags in "-DSAFETY -DNOCLAIM" -DNFAIR=4; do
    rm -f pan*
    spin -DROUNDS=1 "$@" -a "$srcdir/models/$model.pml" > spin.log
    # shellcheck disable=SC2086
    gcc -O1 -w $flags -o pan pan.c
    options=(-m400000)
    if [ "$flags" = -DNFAIR=4 ]; then options+=(-a -f); fi
    ./pan "${options[@]}" > pan.log
    grep -q 'errors: 0' pan.log && ! grep -q 'max search depth' pan.log || return
  done
}

mkdir "$tmp/models"
cd "$tmp/models"

# ends MODEL OPTION...: does what must be at last come, even if something else never ends?
# (That it does not is an invalid end.)
ends ()
{
  local model="$1"

  shift
  rm -f pan*
  spin -DROUNDS=1 "$@" -a "$srcdir/models/$model.pml" > spin.log
  gcc -O1 -w -DNFAIR=4 -o pan pan.c
  ./pan -m400000 -a -f > pan.log
  grep -q 'errors: 0' pan.log
}

if ! long_suite; then
  for part in NONE HOLDER LATE NESTED; do
    verify gate -DMOVES=0 -D$part || fail "the gate, $part: $(cat pan.log)"
  done
  exit
fi

verify gate || fail "the gate: $(cat pan.log)"
for part in HOLDER LATE NESTED; do
  verify gate -DMOVES=1 -D$part || fail "the gate, $part: $(cat pan.log)"
done
for mistake in HOLDER=NO_COUNT LATE=EARLY_STAMP NESTED=ONE_SLOT; do
  ! verify gate -DMOVES=1 -D${mistake%=*} -D${mistake#*=} || fail "nobody notices $mistake"
done
for mistake in GATE_FIRST VIEW_FIRST STAMP_FIRST NO_DRAIN ONE_EPOCH; do
  ! verify gate -D$mistake || fail "nobody notices $mistake"
done
ends gate -DSTUCK || fail "readers wait for a change: $(cat pan.log)"
ends gate -DHANGS || fail "writers wait for a reader: $(cat pan.log)"

verify map || fail "the mapping cache: $(cat pan.log)"
for mistake in NO_AWAIT EVICT_NOW ONE_LOOK BODY_FIRST FORM_FIRST EVICT_RAW; do
  ! verify map -D$mistake || fail "nobody notices $mistake"
done
ends map -DSTUCK || fail "lookups wait for I/O: $(cat pan.log)"
! ends map -DSTUCK -DLOCKED_IO || fail "nobody notices LOCKED_IO"
