#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# While a client writes, an instant of the disk is copied, the chain gets longer and
# shorter, the disk moves to another file, and the server is replaced.  Nothing is lost,
# and the client, which connects again, sees no error.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/recipes.sh"

before_command ()
{
  if [[ "$1" = "echo '[{"*snapshot-internal-sync* ]]; then
    # It writes the same again and again: the disk is then.raw, but for that.
    for i in {0..99999}; do echo "write -P $((i % 2 + 5)) 600M 64k"; done |
      qemu-io --image-opts "driver=raw,file.driver=nbd,file.server.type=unix,\
file.server.path=$sockdir/vm.sock,file.reconnect-delay=600" > writes.log 2>&1 &
    writer=$!
    helper_pids+=("$writer")
    await eval 'grep -q wrote writes.log'
  fi
}

# is_instant FILE FORMAT: it is then.raw, with one of the writes.
is_instant ()
{
  for pattern in 5 6; do
    qemu-io -f raw -c "write -P $pattern 600M 64k" then.raw
    if qemu-img compare -f "$2" -F raw "$1" then.raw; then return 0; fi
  done
  fail "$1 shows no instant of the disk"
}

after ()
{
  # (The last server has ended.)
  kill -0 "$writer" && kill "$writer"
  wait "$writer" || :
  if grep -v 'wrote\|ops/sec\|^qemu-io> *$' writes.log; then fail "a write has failed"; fi
  for image in new.qcow2 tuesday.qcow2 disk.qcow2; do check_clean "$image"; done
  qemu-img info -f qcow2 --backing-chain tuesday.qcow2 | tee chain
  [ "$(grep -c '^image: ' chain)" = 2 ]
  is_instant now.raw raw
  is_instant tuesday.qcow2 qcow2
  is_instant new.qcow2 qcow2
}

recipe "A disk in use: a backup of an instant, a short chain, other storage, a new server"
