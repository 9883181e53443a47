# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs the services of our systemd units without systemd.  Sourced after functions.sh.

# shellcheck disable=SC2034,SC2154

# unit_command SERVICE DIRECTORY INSTANCE: the words of its command, with the plugin that
# was built, on images in DIRECTORY.
unit_command ()
{
  local unit="$abs_top_builddir/systemd/$1.service"

  [ -e "$unit" ] || fail "$unit was not built"
  # $NBDKIT_OPTIONS and $QCOW2_PARAMETERS are split into words, as by systemd.
  eval "printf '%s\n' $(sed -n 's/^ExecStart=//p' "$unit" |
    sed -e "s|[^ ]*/nbdkit-qcow2-plugin.so|$PLUGIN|" -e "s|/var/lib/nbdkit-qcow2|$2|" \
      -e "s|%i|$3|" -e 's|\$\([A-Z0-9_]*\)|${\1-}|g')"
}

# unit_value UNIT KEY: what the file of a unit, or confinement.in, says at last.
unit_value ()
{
  sed -n "s/^$2=//p" "$1" | tail -n 1
}

# activate SOCKET COMMAND...: runs the command as systemd does for the first client.
activate ()
{
  exec "$python" -c '
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1] + ".new")
s.listen(16)
os.rename(sys.argv[1] + ".new", sys.argv[1])
os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execvp(sys.argv[2], sys.argv[2:])' "$@"
}

# start_unit SERVICE DIRECTORY INSTANCE [WRAPPER...]: starts it; sets sock and uri.
start_unit ()
{
  local service="$1" directory="$2" instance="$3"
  local -a command
  shift 3

  mapfile -t command < <(unit_command "$service" "$directory" "$instance")
  sock="$sockdir/unit.sock"
  uri="nbd+unix:///?socket=$sock"
  rm -f "$sock"
  activate "$sock" "$@" "${command[@]}" </dev/null >"$tmp/unit.log" 2>&1 &
  server_pid[unit]=$!
  server_log[unit]="$tmp/unit.log"
  await -p $! test -S "$sock" || { cat "$tmp/unit.log"; false; }
}

# filter_allows: the names of the system calls that the services may use.  (The lines of
# SystemCallFilter= add to or, with ~, remove from what was before.)
filter_allows ()
{
  local line word name

  declare -A allowed=()
  # systemd always allows these.
  for name in $(filter_set @default); do allowed[$name]=1; done
  while read -r line; do
    for word in ${line#\~}; do
      for name in $(filter_set "$word"); do
        if [[ "$line" = \~* ]]; then unset "allowed[$name]"; else allowed[$name]=1; fi
      done
    done
  done < <(sed -n 's/^SystemCallFilter=//p' "$srcdir/../systemd/confinement.in")
  printf '%s\n' "${!allowed[@]}" | sort
}

# filter_set NAME: the system calls of a set.
filter_set ()
{
  local name

  case "$1" in
    @*)
      for name in $(systemd-analyze syscall-filter "$1" | sed '/#/d' | tail -n +2); do
        filter_set "$name"
      done ;;
    *) echo "$1" ;;
  esac
}
