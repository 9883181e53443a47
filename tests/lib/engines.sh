# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# For tests of storage engines: an image is in a real engine, which an NBD server reaches.
# To be sourced after functions.sh.  A test defines
#
#   start_engine   starts the engine and the NBD server in front of it, with the data of
#                  earlier starts, and sets far_uri
#   parts          the names of the servers (start_daemon, start_nbdkit_as) that can be
#                  killed without a loss of what was flushed, the NBD server first; none
#                  if even that one would lose data
#   engine_ops     if its default is not right
#
# and calls engine_keeps_what_was_flushed.

declare -a parts=()
far_uri=
# Our server or one of the parts is killed after at most so many requests.
engine_ops=1500

# requires_network: runs the test again where all ports are free.
requires_network ()
{
  in_network_namespace
  [ -n "${TEST_IN_NETWORK:-}" ] || skip "no network namespace"
}

# start_daemon NAME COMMAND...: starts a server that is not nbdkit, as a child of the
# test, which kills it at the end.
start_daemon ()
{
  local name="$1"
  shift

  server_log[$name]="$tmp/$name.log"
  "$@" </dev/null >>"$tmp/$name.log" 2>&1 &
  server_pid[$name]=$!
}

# await_daemon NAME COMMAND...: waits until the command succeeds.
await_daemon ()
{
  local name="$1"
  shift

  await -p "${server_pid[$name]}" "$@" </dev/null >"$tmp/await.log" 2>&1 ||
    { cat "$tmp/await.log"; fail "$name has ended"; }
}

# processes_of NAME: the server, and those that it has started.
processes_of ()
{
  echo "${server_pid[$1]}"
  pgrep -P "${server_pid[$1]}" || :
}

# kill_part NAME: kills its processes (SIGKILL), which may have ended already.
kill_part ()
{
  local pid
  local -a pids

  [ -n "${server_pid[$1]:-}" ] || return 0
  mapfile -t pids < <(processes_of "$1")
  unset "server_pid[$1]"
  kill -KILL "${pids[@]}" || :
  wait "${pids[0]}" || :
  # (Bash does not wait for what is not its child.  While a thread is left, so are the
  # locks of its process, even if that is a zombie already.)
  for pid in "${pids[@]}"; do
    while grep -q '^State:.[^XZ]' "/proc/$pid/"task/*/status; do sleep 0.01; done 2>/dev/null
  done
}

# stop_main: ends our server, whatever its exit status.
stop_main ()
{
  kill -TERM "${server_pid[main]}" || :
  wait "${server_pid[main]}" || :
  unset 'server_pid[main]'
  cat "$tmp/main.log"
}

# copy_far FILE: the bytes that are in the engine.
copy_far ()
{
  rm -f "$1"
  # The engine may admit one client, and still be busy with the last one.
  await nbdcopy --connections=1 "$far_uri" "$1"
}

# crash_round VICTIM: sends random requests, until the VICTIM (main: our server) is
# killed.  What a client has flushed must be there.
crash_round ()
{
  local victim="$1" part pid
  local -a how=()

  start_nbdkit "$far_uri" lock=false reconnect=1
  if [ "$victim" != main ]; then how=(--far); fi
  for pid in $(processes_of "$victim"); do how+=(--pid "$pid"); done
  model crash "$uri" "$tmp/state" --ops "$engine_ops" --connections 2 --weights flush=5 \
    "${how[@]}"
  kill_part "$victim"
  if [ "$victim" != main ]; then stop_main; fi
  # What our server had sent may reach the engine later, unless its front is killed, too.
  for part in "${parts[@]}"; do
    kill_part "$part"
    if [ "$victim" = main ] || [ "$victim" = "$part" ]; then break; fi
  done
  if [ ${#parts[@]} -gt 0 ]; then start_engine; fi
  copy_far "$tmp/image"
  check_leaks_only "$tmp/image"
  qemu-img convert -f qcow2 -O raw "$tmp/image" "$tmp/judged.raw"
  model judge "$tmp/state" "$tmp/judged.raw"
}

# clean_round: random requests, and a proper end.
clean_round ()
{
  rm -f "$tmp/model.raw"
  qemu-img convert -f qcow2 -O raw "$tmp/image" "$tmp/model.raw"
  start_nbdkit "$far_uri" lock=false check=repair
  model random "$uri" "$tmp/model.raw" --ops "$engine_ops"
  stop_nbdkit
  copy_far "$tmp/image"
  check_clean "$tmp/image"
  same_as_raw "$tmp/image" "$tmp/model.raw"
}

# fill_engine: puts a new image into the engine, in an export of 32M.
fill_engine ()
{
  rm -f "$tmp/image" "$tmp/state"
  make_image "$tmp/image" 8M
  truncate -s 32M "$tmp/image"
  nbdcopy --flush --connections=1 "$tmp/image" "$far_uri"
}

engine_keeps_what_was_flushed ()
{
  local victim

  start_engine
  fill_engine
  for victim in main "${parts[@]}"; do crash_round "$victim"; done
  clean_round
}

# find_weed: SeaweedFS, from PyPI (scripts/common.sh) or installed.
find_weed ()
{
  local weed

  for weed in "$srcdir/../build/engines/bin/weed" "$(command -v weed)"; do
    if [ -x "$weed" ]; then echo "$weed"; return 0; fi
  done
  return 1
}
