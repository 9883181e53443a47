# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs the commands in a document, word for word, in a directory with the files that they
# name.  To be sourced after functions.sh and ceph.sh.
#
# Differences from a user's machine:
#   nbdkit              "qcow2" is the plugin that was built, not an installed one, and
#                       does not measure PBKDF2 (hastycpu)
#   cmp                 is qemu-img compare, which skips holes
#   /tmp/NAME.sock      is in a private directory
#   /dev/vg/NAME        is a link there, if the test has made one; otherwise the command
#                       is not run
#   qemu-system-x86_64  only opens the disk that it is given (there may be no KVM)
#   nbdkit-qcow2-*      is the program in scripts/ or img/, not an installed one
#   nbd-client          only looks at the socket (there may be no kernel module)
#   systemctl           only looks whether there is such a unit
#   systemd-sysusers    does nothing
#   install             puts files of /var/lib into the current directory, and they keep
#                       their owner
#   usermod             only looks whether there would be the group
#   https://example.com is a web server here; see serve_web
# Servers run in the background: nbdkit without --run, nbdkit -f in --run, and qemu-nbd.
# One of the plugin ends before the next nbdkit command, others at the end of the section.
# So do commands with & at their end, when they have written --pidfile; "wait" waits until
# those have ended by themselves.
# All commands run in a network namespace, where ports are free.

# --- The programs.

PLUGIN=$(realpath "$PLUGIN")
export PLUGIN
mkdir "$tmp/bin"
cat > "$tmp/bin/nbdkit" <<SCRIPT
#!/bin/bash
args=()
for a; do
  [ "\$a" != qcow2 ] || a='$PLUGIN'
  args+=("\${a/https:\/\/example.com\//http://127.0.0.1/}")
done
hasty='$abs_top_builddir/tests/lib/.libs/hastycpu.so'
if [ -e "\$hasty" ]; then export LD_PRELOAD="\$hasty"; fi
exec '$(command -v "$NBDKIT")' "\${args[@]}"
SCRIPT
cat > "$tmp/bin/cmp" <<'SCRIPT'
#!/bin/bash
[ $# = 2 ] && [ "$(qemu-img compare -f raw -F raw "$@")" = "Images are identical." ]
SCRIPT
cat > "$tmp/bin/curl" <<SCRIPT
#!/bin/bash
exec '$(command -v curl)' "\${@/#https:\/\/example.com\//http://127.0.0.1/}"
SCRIPT
cat > "$tmp/bin/qemu-system-x86_64" <<'SCRIPT'
#!/bin/bash
# -drive file=URI,format=raw,...: QEMU's block layer reads and writes it.
while [ $# -gt 0 ] && [ "$1" != -drive ]; do shift; done
[[ "$2" =~ ^file=([^,]*),format=raw,if=virtio(,discard=unmap)?$ ]] || exit 1
exec qemu-io -f raw -c 'read 0 64k' -c 'write -P 7 64k 4k' -c flush "${BASH_REMATCH[1]}"
SCRIPT
cat > "$tmp/bin/nbd-client" <<'SCRIPT'
#!/bin/bash
[ "$1" = -unix ] && [ "$3" = /dev/nbd0 ] && exec nbdinfo "nbd+unix:///?socket=$2"
SCRIPT
cat > "$tmp/bin/systemctl" <<SCRIPT
#!/bin/bash
[ "\$1 \$2" = "enable --now" ] && unit="\${3/@*./@.}" && [ -e "$srcdir/../systemd/\$unit" ]
SCRIPT
printf '#!/bin/bash\n' > "$tmp/bin/systemd-sysusers"
cat > "$tmp/bin/install" <<SCRIPT
#!/bin/bash
args=()
while [ \$# -gt 0 ]; do
  case "\$1" in
    -o) grep "^u \$2 " "$srcdir/../systemd/nbdkit-qcow2.conf" || exit; shift 2 ;;
    -g) grep "^[ug] \$2 " "$srcdir/../systemd/nbdkit-qcow2.conf" || exit; shift 2 ;;
    *) args+=("\${1/#\/var\/lib\//var/lib/}"); shift ;;
  esac
done
exec '$(command -v install)' "\${args[@]}"
SCRIPT
cat > "$tmp/bin/usermod" <<SCRIPT
#!/bin/bash
[ "\$1 \$2" = "-a -G" ] && grep "^g \$3 " "$srcdir/../systemd/nbdkit-qcow2.conf"
SCRIPT
chmod +x "$tmp/bin/"*
ln -s "$abs_top_builddir/img/nbdkit-qcow2-img" "$tmp/bin"
for name in advise-cache apply-changes validate; do
  ln -s nbdkit-qcow2-img "$tmp/bin/nbdkit-qcow2-$name"
done

# --- Documents.

# plain_units FILE: prints the commands of a document, which is plain text or Markdown: for
# each paragraph that commands follow, a line "= ITS FIRST LINE", and the lines of the
# commands.  Tables, whose first line is indented further, are not commands.  In a row of
# a Markdown table, which begins with |, the first cell is the paragraph, and the next one
# has the commands, in backticks.  Between ``` a command follows "$ ".
plain_units ()
{
  awk '
    /^```/ { fence = !fence; next }
    fence && /^[$] / { if (!said) print "= " title; said = 1; print substr ($0, 3) }
    fence { next }
    /^[|]/ { in_paragraph = 0; split ($0, cell, / *[|] */)
             if (cell[3] ~ /^`/) {
               gsub (/`<br>`/, "\n", cell[3]); gsub (/`/, "", cell[3])
               print "= " cell[2]; print cell[3] }
             next }
    /^[^ ]/ && !in_paragraph { title = $0; said = 0; table = 0 }
    { in_paragraph = /^[^ ]/ }
    /^     / && !said { table = 1 }
    /^    / && !table { if (!said) print "= " title; said = 1; print substr ($0, 5) }' "$1"
}

# pod_units FILE: the same for a manual page; the title is that of the innermost =head or
# =item.  SYNOPSIS, PARAMETERS and some others do not contain commands.
pod_units ()
{
  awk -v other='^(SYNOPSIS|PARAMETERS|FEATURES OF A BUILD|Lines|Metrics|Rotation of the log)$' '
    /^=(head1|head2|item) / { title = $0; sub (/^=[a-z0-9]+ +/, "", title) }
    /^=head/ { section = title }
    /^=back/ { title = section }
    /^ / && title !~ other {
      if (title != printed) print "= " title
      printed = title
      print substr ($0, 2) }' "$1"
}

# --- The files that commands name, and how they are judged.

# make_files: makes disk.qcow2, and its contents in disk.raw and then.raw.
make_files ()
{
  make_image disk.qcow2 1G
  qemu-io -f qcow2 -c 'write -P 1 0 8M' -c 'write -P 2 500M 1M' disk.qcow2
  qemu-img convert -f qcow2 -O raw disk.qcow2 then.raw
  cp --sparse=always then.raw disk.raw
}

# same IMAGE RAW: do they contain the same disk?
same ()
{
  qemu-img compare -f qcow2 -F raw "$1" "$2"
}

# same_raw RAW RAW
same_raw ()
{
  qemu-img compare -f raw -F raw "$1" "$2"
}

# write_hello SOCKET: something that the disk did not contain.
write_hello ()
{
  uri="nbd+unix:///?socket=$1" nbdsh_run -c 'h.pwrite(b"hello", 3 << 20); h.flush()'
}

# has_hello IMAGE: does it contain this, and otherwise the disk then.raw?
has_hello ()
{
  printf hello | dd of=then.raw bs=1M seek=3 conv=notrunc
  check_clean "$1"
  same "$1" then.raw
}

# served ARGUMENT...: may nbdkit serve the image?
served ()
{
  "$NBDKIT" -U - "$@" --run true
}

# --- Running commands.

# start_server NAME COMMAND: the command writes its process to NAME.pid when it is ready.
start_server ()
{
  local name="$1"

  rm -f "$name.pid"
  server_log[$name]="$tmp/$name.log"
  bash -c "exec $2" < /dev/null > "$tmp/$name.log" 2>&1 &
  server_pid[$name]=$!
  await -p $! test -s "$name.pid" || return 1
  # Another process, if --run started it.
  server_pid[$name.itself]=$(cat "$name.pid")
}

# end_server NAME: if it was started, it must exit cleanly.
end_server ()
{
  [ -n "${server_pid[$1.itself]:-}" ] || return 0
  kill -TERM "${server_pid[$1.itself]}" || :    # it may have ended by itself
  await_server "$1"
}

# await_server NAME: it must end, and cleanly.
await_server ()
{
  local status=0

  wait "${server_pid[$1]}" || status=$?
  unset "server_pid[$1]" "server_pid[$1.itself]"
  cat "${server_log[$1]}"
  [ "$status" -eq 0 ] || fail "server '$1' ended with status $status"
}

# servers: the names of those that start_server has started.
servers ()
{
  local name

  for name in "${!server_pid[@]}"; do
    if [ -n "${server_pid[$name.itself]:-}" ]; then echo "$name"; fi
  done
}

# run_command COMMAND: runs it in the current directory.
run_command ()
{
  local command="$1" name=far
  local PATH="$tmp/bin:$PATH"

  command="$(sed -E "s,/tmp/([a-z0-9]+\.sock),$sockdir/\1,g;
                     s,-U (disk\.sock),-U $sockdir/\1,g;
                     s,/dev/vg/([a-z]+),$sockdir/\1.device,g" <<< "$command")"
  if [[ "$command" = *.device* && ! -e "$sockdir/disk.device" ]]; then
    echo "no device: not run: $command"
    return 0
  fi
  if [[ -z "${TEST_IN_NETWORK:-}" &&
        ( "$command" = *localhost* ||
          "$command" = nbdkit\ * && ! "$command" =~ " -U "|" --unix " ) ]]
  then
    echo "not run: $command"
    return 0
  fi
  if [[ "$command" = nbdkit\ *\ qcow2\ * ]]; then name=plugin; fi
  case "$command" in
    *" --pidfile "*" &"$'\n'|*" --pidfile "*" &")
      name="${command#* --pidfile }"
      start_server "${name%%.pid *}" "${command%&*}" ;;
    wait)
      for name in $(servers); do await_server "$name"; done ;;
    nbdkit\ *"--run "*"'nbdkit -f "*)
      end_server plugin
      start_server plugin "${command/\'nbdkit -f /\'nbdkit -f -P plugin.pid }" ;;
    nbdkit\ *"--run "*)
      end_server plugin
      bash -e -c "$command" < /dev/null ;;
    nbdkit\ *)
      end_server plugin
      end_server $name
      start_server $name "nbdkit -f -P $name.pid ${command#nbdkit }" ;;
    "qemu-nbd --fork "*)
      end_server far
      start_server far "qemu-nbd --pid-file=far.pid ${command#qemu-nbd --fork }" ;;
    *)
      bash -e -c "$command" < /dev/null ;;
  esac
}

# serve_web: https://example.com has the files of the current directory.
serve_web ()
{
  if [ -z "${TEST_IN_NETWORK:-}" ]; then not_here="no network namespace"; return; fi
  busybox httpd -f -p 127.0.0.1:80 &
  server_pid[web]=$!
  await -p $! eval '(: < /dev/tcp/127.0.0.1/80) 2> /dev/null'
}

# serve_ceph FILE: the RBD image rbd/disk has these bytes, and is somewhat larger.
serve_ceph ()
{
  not_here="$(lacks_for_ceph)"
  [ -z "$not_here" ] || return 0
  start_ceph
  rbd import --no-progress "$1" disk
  rbd resize --no-progress --size 64M disk
}

# run_unit FUNCTION TITLE FILE: runs the commands in FILE, one after the other.  FUNCTION
# is called with "before" TITLE, to prepare what is needed; with "command" TITLE COMMAND
# before each command; with "serving" TITLE when servers still run; and with "after" TITLE
# to judge the result.  It must know each title.  The output of the commands is then in the
# file "out".  If something is missing here that the commands need, "before" says so in the
# variable not_here.
run_unit ()
{
  local judge="$1" title="$2" commands="$3" command="" line dir

  dir="$(mktemp -d "$tmp/unit.XXXXXX")"
  cd "$dir"
  ln -s "$(realpath "$srcdir/../scripts")" scripts
  # Sections do not depend on each other (nbdkit leaves its sockets behind).
  rm -f "$sockdir"/*.sock
  not_here=
  "$judge" before "$title"
  if [ -n "$not_here" ]; then
    echo "not run: $title ($not_here)"
    cd "$tmp"
    return
  fi
  while IFS= read -r line; do
    command+="$line"
    # Is it complete?  Quotes may continue in the next line.
    if [[ "$line" = *\\ ]] || ! bash -n -c "$command" 2> /dev/null; then
      command+=$'\n'
      continue
    fi
    if [ -n "$command" ] && ! is_not_run "$command"; then
      "$judge" command "$title" "$command"
      run_command "$command" || { cat out; fail "$title: failed: $command"; } >&2
    fi
    command=""
  done < "$commands" > out
  cat out
  [ -z "$command" ] || fail "incomplete: $command"
  "$judge" serving "$title"
  for line in $(servers); do end_server "$line"; done
  if [ -n "${server_pid[web]:-}" ]; then kill9_nbdkit web; fi
  "$judge" after "$title"
  cd "$tmp"
  rm -rf "$dir"
}

# Commands that are not run, each with its reason; see not_run.
declare -A commands_not_run=() commands_met=()

# not_run COMMAND REASON
not_run ()
{
  commands_not_run["$1"]="$2"
}

is_not_run ()
{
  [ -n "${commands_not_run["$1"]:-}" ] || return 1
  commands_met["$1"]=yes
  echo "not run: $1 (${commands_not_run["$1"]})"
}

# run_units FUNCTION: runs each unit from stdin with run_unit.
run_units ()
{
  local judge="$1" line title="" command

  rm -f "$tmp/commands"
  while IFS= read -r line; do
    if [[ "$line" = "= "* ]]; then
      if [ -n "$title" ]; then run_unit "$judge" "$title" "$tmp/commands"; fi
      title="${line#= }"
      : > "$tmp/commands"
    else
      printf '%s\n' "$line" >> "$tmp/commands"
    fi
  done
  [ -n "$title" ] || fail "no commands"
  run_unit "$judge" "$title" "$tmp/commands"
  for command in "${!commands_not_run[@]}"; do
    [ -n "${commands_met["$command"]:-}" ] || fail "no document has: $command"
  done
}
