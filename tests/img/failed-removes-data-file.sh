#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# If nbdkit-qcow2-img cannot complete a new image, or is stopped, it also removes the external
# data file that it has made.  What existed under that name before stays as it is.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

cd ours

# Its end cannot be read, or only late.
"$NBDKIT" -f -U "$sockdir/bad.sock" -P bad.pid eval get_size='echo 2113536' pread='
  cd '"$PWD"'
  if [ $4 -ge 2097152 ]; then
    while [ ! -e go ]; do touch slow; sleep 0.05; done
    echo EIO bad >&2; exit 1
  fi
  head -c $3 /dev/zero | tr "\0" a' &
helper_pids+=($!)
bad="nbd+unix:///?socket=$sockdir/bad.sock"
while [ ! -s bad.pid ]; do sleep 0.02; done

# nothing_made: neither of both files.
nothing_made ()
{
  [ ! -e new.qcow2 ] || fail "the image is there"
  [ ! -e new.data ] || fail "the data file is there"
  (cd .. && nothing_left)
}

touch go
for options in "" "-m 2" "-S 0" --salvage "-o data_file_raw=on" "-o preallocation=full" \
    "-o preallocation=metadata"; do
  # shellcheck disable=SC2086
  if img convert -f raw -O qcow2 $options -o data_file=new.data "$bad" new.qcow2 2> err; then
    [ "$options" = --salvage ] || fail "not refused"
    check_clean new.qcow2
    [ -s new.data ]
    rm new.qcow2
  else
    nothing_made
  fi
  # Not ours.
  echo "what existed" > new.data
  if img convert -f raw -O qcow2 $options -o data_file=new.data "$bad" new.qcow2 2> err; then
    fail "it replaced the data file"
  fi
  [ "$(cat new.data)" = "what existed" ]
  rm new.data
  nothing_made
done

# With what existed under the name of the image.
echo "what existed" > new.qcow2
if img convert -f raw -O qcow2 -o data_file=new.data "$bad" new.qcow2 2> err; then
  fail "not refused"
fi
[ "$(cat new.qcow2)" = "what existed" ]
rm new.qcow2
nothing_made

# create: the name of the backing file is too long for the header.
if img create -q -f qcow2 -u -b "$(printf '%01100d' 0)" -F raw -o data_file=new.data \
    new.qcow2 1M 2> err; then
  fail "not refused"
fi
nothing_made

# Stopped by a signal.
rm go
"$IMG" convert -f raw \
  -O qcow2 -o data_file=new.data "$bad" new.qcow2 &
pid=$!
helper_pids+=($pid)
while [ ! -e slow ]; do sleep 0.02; done
[ -e new.data ]
kill "$pid"
touch go
status=0
wait "$pid" || status=$?
[ "$status" = 143 ]
nothing_made

# What is complete stays, with its data file.
img create -q -f qcow2 -o data_file=new.data new.qcow2 1M
check_clean new.qcow2
[ "$(stat -c %s new.data)" = 1048576 ]
