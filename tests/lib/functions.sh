# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Functions that the shell tests share.  A test begins with
#
#   . "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
#
# and then has: strict mode, a private directory $tmp (at the end, it is removed, and
# every server that the test started is killed), and the functions below.
#
# Exit status: 0 passed, 77 skipped (with the reason), anything else failed.
#
# Variables of the environment (automake sets them; all have defaults, so that a test can
# be run by hand from the build directory or any other):
#   srcdir            the directory above this one
#   abs_top_builddir  top of the build tree
#   PLUGIN            path of nbdkit-qcow2-plugin.so
#   NBDKIT            the server, default "nbdkit"
#   SEED              replays a random test
#   QCOW2_TEST_SEED   makes random tests do the same each time
#   QCOW2_TEST_LONG   if set, this is the long suite (scripts/test --long)
#   KEEP              if set, the private directory is kept

set -e -u -o pipefail
set -x

export LC_ALL=C

if [ -n "${QCOW2_TEST_SEED:-}" ]; then RANDOM="$QCOW2_TEST_SEED"; fi

srcdir="${srcdir:-$(dirname "$0")/..}"
srcdir="$(cd "$srcdir" && pwd)"
if [ -z "${abs_top_builddir:-}" ]; then
  abs_top_builddir="$(cd "$srcdir/.." && pwd)"
  if [ -d ../plugin ]; then abs_top_builddir="$(cd .. && pwd)"; fi
fi
PLUGIN="${PLUGIN:-$abs_top_builddir/plugin/.libs/nbdkit-qcow2-plugin.so}"
NBDKIT="${NBDKIT:-nbdkit}"
# A test that hangs is ended by whoever runs it (test_timeout in Makefile.am).  There is no
# other deadline: the machine may be busy.  What is to take little time, however hostile an
# image is, gets a minute of the processor: "${soon[@]}" COMMAND...
soon=(prlimit --cpu=60)

# qemu-img, in no time.
export abs_top_builddir
PATH="$srcdir/lib/path:$PATH"

# A Python with libnbd's module: that of tests/Makefile.am, which starts sooner, if it is
# still made of the same one; otherwise the first one in the PATH often does not have it.
python="$abs_top_builddir/tests/lib/python/bin/python3"
if [ -n "${PYTHON:-}" ] || ! [ "$python" -ef "${python%/*}/../made-of" ]; then
  python=
  for p in "${PYTHON:-}" /usr/bin/python3 python3; do
    if [ -n "$p" ] && "$p" -c 'import nbd' >/dev/null 2>&1; then
      python="$p"
      break
    fi
  done
fi

test_name="${0##*/}"
test_name="${test_name%.sh}"
tmp="$(mktemp -d "$PWD/$test_name.XXXXXX")"
# The name of a socket must fit in 108 bytes, and some programs use long ones.
sockdir="$tmp"
if [ "${#tmp}" -gt 70 ]; then
  sockdir="$(mktemp -d /tmp/qcow2.XXXXXX)"
fi

# Servers by name.
declare -A server_pid=() server_log=()
# Other processes to kill at the end.
declare -a helper_pids=()

cleanup ()
{
  local status=$? name pid

  set +e
  trap '' INT TERM HUP
  for name in "${!server_pid[@]}"; do
    kill -KILL "${server_pid[$name]}"
    wait "${server_pid[$name]}"
  done 2>/dev/null
  for pid in "${helper_pids[@]}"; do
    kill -KILL "$pid"
    wait "$pid"
  done 2>/dev/null
  if [ "$status" -ne 0 ] && [ "$status" -ne 77 ]; then
    for name in "${!server_log[@]}"; do
      echo "--- log of server '$name' (its end):"
      tail -n 60 "${server_log[$name]}"
    done
    echo "$test_name: FAILED (status $status)"
  fi
  if [ -n "${TEST_IN_NAMESPACE:-}" ]; then
    # Otherwise rm would empty a mounted directory, and then fail.
    grep -o " ${tmp}[^ ]* " /proc/self/mounts | tac | xargs -r -n 1 umount
  fi
  if [ -z "${KEEP:-}" ]; then rm -rf "$tmp" "$sockdir"; fi
  exit "$status"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

fail ()
{
  echo "$test_name: $*" >&2
  exit 1
}

skip ()
{
  { set +x; } 2>/dev/null               # the reason is the last line
  echo "$test_name: skipped: $*"
  exit 77
}

# requires COMMAND [ARG...]: skips the test if this command fails.
requires ()
{
  "$@" </dev/null >/dev/null 2>&1 || skip "'$*' is missing or doesn't work"
}

requires_filter ()
{
  requires "$NBDKIT" --filter="$1" null --dump-plugin
}

# Nearly every test needs these.
requires_tools ()
{
  requires type "$NBDKIT" qemu-img nbdinfo
  requires_python_nbd
}

requires_python_nbd ()
{
  [ -n "$python" ] || skip "no python3 with libnbd's nbd module"
}

# requires_namespace: runs the test again in its own mount namespace, so that everything
# that it mounts is unmounted when it ends.
requires_namespace ()
{
  if [ -n "${TEST_IN_NAMESPACE:-}" ]; then return 0; fi
  local -a unshare=(unshare --mount)
  [ "$(id -u)" = 0 ] || unshare+=(--map-root-user)
  # In a chroot, where / is no mount point, propagation can't be changed.
  "${unshare[@]}" true || unshare+=(--propagation unchanged)
  # shellcheck disable=SC2016
  requires "${unshare[@]}" sh -c 'mount -t tmpfs none "$0"' "$tmp"
  rm -rf "$tmp" "$sockdir"
  trap - EXIT
  TEST_IN_NAMESPACE=1 exec "${unshare[@]}" "$BASH" "$0"
}

# in_network_namespace: runs the test again where no other program uses ports, if it can:
# then TEST_IN_NETWORK is set.
in_network_namespace ()
{
  local -a unshare=(unshare --net)

  if [ -n "${TEST_IN_NETWORK:-}" ]; then
    "$python" - <<'PY'
import fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
PY
    return 0
  fi
  [ "$(id -u)" = 0 ] || unshare+=(--map-root-user)
  if "${unshare[@]}" true; then
    rm -rf "$tmp" "$sockdir"
    trap - EXIT
    TEST_IN_NETWORK=1 exec "${unshare[@]}" "$BASH" "$0"
  fi
}

# await [-p PID] COMMAND...: until it succeeds.  It returns 1 if that process ends before.
await ()
{
  local pid=$$ status=0

  if [ "$1" = -p ]; then
    pid="$2"
    shift 2
  fi
  set +x
  until "$@"; do
    # (It may have succeeded since.)
    kill -0 "$pid" 2>/dev/null || { "$@" || status=1; break; }
    sleep 0.02
  done
  set -x
  return "$status"
}

# Is this the long suite?
long_suite ()
{
  [ -n "${QCOW2_TEST_LONG:-}" ]
}

# sample N ITEM...: sets the array $sample to N of them, chosen at random, or to all in the
# long suite.  The order remains.
sample ()
{
  local -i want="$1" left=$(($# - 1))
  shift

  if long_suite; then want=left; fi
  sample=()
  for ((; left > 0; left--)); do
    # (No $RANDOM where it makes no difference, nor in a subshell: see random.sh.)
    if [ "$want" -ge "$left" ] || [ $((RANDOM % left)) -lt "$want" ]; then
      sample+=("$1")
      want+=-1
    fi
    shift
  done
}

# --- servers ---

# start_nbdkit [NBDKIT-OPTION... --] PARAMETER...
# start_nbdkit_as NAME [NBDKIT-OPTION... --] PARAMETER...
#
# Starts a server on a Unix socket and waits until it listens.  Sets:
#   sock        the socket
#   uri         its NBD URI
#   nbdkit_pid  the process
# The server runs in nbdkit's foreground mode, as a child of the test, so that the test
# gets its exit status (serve/daemon-keeps-files-and-locks.sh tests the other mode).
start_nbdkit_as ()
{
  local name="$1" pidfile log
  local -a options=()
  shift
  if [[ "${1-}" = -* ]]; then
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
  fi
  sock="$sockdir/$name.sock"
  uri="nbd+unix:///?socket=$sock"
  pidfile="$tmp/$name.pid"
  log="$tmp/$name.log"
  rm -f "$sock" "$pidfile"
  # shellcheck disable=SC2086
  ${NBDKIT_WRAPPER:-} "$NBDKIT" -f -U "$sock" -P "$pidfile" "${options[@]}" \
    "$PLUGIN" "$@" </dev/null >"$log" 2>&1 &
  nbdkit_pid=$!
  server_pid[$name]=$nbdkit_pid
  server_log[$name]="$log"
  if ! await -p "$nbdkit_pid" test -s "$pidfile"; then
    cat "$log"
    return 1
  fi
}

start_nbdkit ()
{
  start_nbdkit_as main "$@"
}

# await_nbdkit [NAME]: waits until the server has ended, cleanly.
await_nbdkit ()
{
  local name="${1:-main}" status=0

  wait "${server_pid[$name]}" || status=$?
  unset "server_pid[$name]"
  cat "${server_log[$name]}"
  [ "$status" -eq 0 ] || fail "server '$name' ended with status $status"
}

# stop_nbdkit [NAME]: sends SIGTERM, and waits for a clean exit.
# shellcheck disable=SC2120
stop_nbdkit ()
{
  kill -TERM "${server_pid[${1:-main}]}"
  await_nbdkit "$@"
}

# kill9_nbdkit [NAME]: kills the server, as if it had crashed.
kill9_nbdkit ()
{
  local name="${1:-main}"

  kill -KILL "${server_pid[$name]}"
  wait "${server_pid[$name]}" || :
  unset "server_pid[$name]"
}

# listens SOCKET: does a server wait for clients there?  (A moment before that, only the
# file is there.)
listens ()
{
  grep -q " 00010000 .* $1\$" /proc/net/unix
}

# await_end PID: until this process has ended.
await_end ()
{
  tail -s 0.02 --pid="$1" -f /dev/null
}

# start_storage_daemon OPTION...: QEMU's server, with a monitor, $sockdir/t.qmp.
start_storage_daemon ()
{
  qemu-storage-daemon --chardev socket,path="$sockdir/t.qmp",server=on,wait=off,id=c \
    --monitor chardev=c,mode=control "$@" &
  storage_daemon=$!
  helper_pids+=("$storage_daemon")
  await -p "$storage_daemon" listens "$sockdir/t.qmp"
}

end_storage_daemon ()
{
  kill -TERM "$storage_daemon" 2>/dev/null || :
  await_end "$storage_daemon"
}

# start_both IMAGE NODE OPTION...: ours serves $tmp/ours/IMAGE, with control socket
# $sockdir/o.qmp; QEMU's has $tmp/theirs/IMAGE as NODE, and these options.  See class Both
# of qmp.py.
start_both ()
{
  start_nbdkit control="$sockdir/o.qmp" "$tmp/ours/$1"
  start_storage_daemon --blockdev driver=file,filename="$tmp/theirs/$1",node-name=f0 \
    --blockdev driver=qcow2,file=f0,node-name="$2" "${@:3}"
}

# The same, and QEMU's serves it at $sockdir/t.nbd, too.
start_both_served ()
{
  start_both "$1" "$2" --nbd-server addr.type=unix,addr.path="$sockdir/t.nbd" \
    --export nbd,id=disk,node-name="$2",writable=on,name=
}

# start_target: another server, at $sockdir/target, of $tmp/copy.raw (16M).  Files in $tmp
# say what happens: if there is hold-write or hold-flush, the next write or flush removes
# it, writes to the pipe "holds", and waits until somebody opens the pipe "go-on" for
# writing; while there is "full", writes fail.
start_target ()
{
  # ($1 is the method: pwrite or flush.)
  # shellcheck disable=SC2016
  local hold='hold="$tmp"/hold-${1#p}
    [ ! -e "$hold" ] || { rm "$hold"; echo >"$tmp"/holds; cat "$tmp"/go-on; };'

  requires "$NBDKIT" eval --version
  truncate -s 16M "$tmp/copy.raw"
  mkfifo "$tmp/holds" "$tmp/go-on"
  # shellcheck disable=SC2016
  tmp="$tmp" "$NBDKIT" -f -U "$sockdir/target" eval \
    get_size='echo 16777216' can_flush='exit 0' can_write='exit 0' \
    pread='dd if="$tmp"/copy.raw bs=64K iflag=skip_bytes,count_bytes skip=$4 count=$3' \
    pwrite="$hold"' [ ! -e "$tmp"/full ] || { cat >/dev/null; echo ENOSPC full >&2; exit 1; }
      dd of="$tmp"/copy.raw conv=notrunc oflag=seek_bytes seek=$4' flush="$hold" &
  helper_pids+=($!)
  await -p $! listens "$sockdir/target"
}

# Is the server still running?
server_lives ()
{
  kill -0 "${server_pid[${1:-main}]}"
}

# refused PATTERN [NBDKIT-OPTION... --] PARAMETER...: the server must refuse to start,
# soon, with exactly one line on stderr, which matches the extended regexp PATTERN.
refused ()
{
  local pattern="$1" status=0 out
  local -a options=() lines
  shift
  if [[ "${1-}" = -* ]]; then
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
  fi
  "${soon[@]}" "$NBDKIT" -U - "${options[@]}" --run 'echo SERVED' "$PLUGIN" "$@" \
    </dev/null >"$tmp/refused.out" 2>"$tmp/refused.err" || status=$?
  # (Without other programs: tests do this a thousand times.)
  out="$(<"$tmp/refused.out")"
  mapfile -t lines < "$tmp/refused.err"
  printf '%s\n' "$out" "${lines[@]}"
  if [[ "$out" = *SERVED* ]]; then
    echo "refused: was served: $*"
    return 1
  fi
  if [ "$status" -ne 1 ]; then
    echo "refused: exit status $status, expected 1"
    return 1
  fi
  if [ "${#lines[@]}" -ne 1 ]; then
    echo "refused: ${#lines[@]} lines on stderr, expected one"
    return 1
  fi
  if ! grep -Eiq -- "$pattern" <<< "${lines[0]}"; then
    echo "refused: the message does not match '$pattern'"
    return 1
  fi
}

# refused_untouched PATTERN IMAGE PARAMETER...: the same, and the image must not change.
refused_untouched ()
{
  local image="$2" before

  before="$(fingerprint "$image")"
  refused "$@"
  [ "$before" = "$(fingerprint "$image")" ] || fail "refused, but changed: $*"
}

# refused_always PATTERN IMAGE PARAMETER...: the same with and without untrusted=true, and
# with -r.
refused_always ()
{
  local pattern="$1"
  shift

  refused_untouched "$pattern" "$@"
  refused_untouched "$pattern" "$@" untrusted=true
  refused "$pattern" -r -- "$@"
}

# header_refused PATTERN FIELD FORMAT VALUE...: the same for a copy of $tmp/good.qcow2, in
# $img, with these changes of the header (see header_patch).
header_refused ()
{
  local pattern="$1"
  shift

  cp "$tmp/good.qcow2" "$img"
  header_patch "$img" "$@"
  refused_always "$pattern" "$img"
}

# opens_no FILE PARAMETER...: the server, served or refused, must not open FILE.  Its name
# must not be in the parameters.
opens_no ()
{
  local file="$1"
  shift

  requires strace -f -e trace=openat true
  # shellcheck disable=SC2016
  strace -f -qq -e trace=open,openat -o "$tmp/opened" \
    "$NBDKIT" -U - --run 'nbdinfo --size "$uri"' "$PLUGIN" "$@" </dev/null || :
  grep -qF "$1" "$tmp/opened"
  if grep -F "$file" "$tmp/opened"; then fail "opened $file: $*"; fi
}

# fails_with TEXT COMMAND...: the command must fail, and print TEXT.
fails_with ()
{
  local text="$1" status=0
  shift
  "$@" > "$tmp/out" 2>&1 || status=$?
  cat "$tmp/out"
  [ "$status" -ne 0 ] || fail "should have failed: $*"
  grep -qF -- "$text" "$tmp/out" || fail "no '$text' from: $*"
}

# start_and_end IMAGE PARAMETER...: does what happens before serving, and nothing else.
start_and_end ()
{
  "$NBDKIT" -U - "$PLUGIN" "$@" --run true
}

# refused_connection PATTERN: the server 'main', which is running, must refuse a client,
# and its log must contain a line that matches PATTERN.
refused_connection ()
{
  if nbdinfo --size "$uri"; then
    echo "refused_connection: was served"
    return 1
  fi
  grep -Ei -- "$1" "${server_log[main]}"
}

# export_uri NAME: the URI of this export of the last server.
export_uri ()
{
  echo "nbd+unix:///$1?socket=$sock"
}

# nbdsh_run -c SCRIPT [-c SCRIPT]...: what nbdsh does, which takes twice as long to start:
# h is connected to the last server.  "nbdsh_run -c -" reads the script from stdin.
nbdsh_run ()
{
  "$python" -c '
import os, sys
import nbd
uri, scripts = sys.argv[1], sys.argv[2:]
h = nbd.NBD()
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
while scripts:
    option, script, *scripts = scripts
    assert option == "-c", option
    exec(sys.stdin.read() if script == "-" else script)' "$uri" "$@"
}

# model ARGUMENT...: runs model.py on the last server (see there).
model ()
{
  "$python" "$srcdir/lib/model.py" "$@"
}

# hold_connection: keeps a connection to the last server open, in the background.
# It ends with drop_connections, or with the test.
hold_connection ()
{
  local ready="$tmp/held.${#helper_pids[@]}"

  rm -f "$ready"
  # Not through a function: $! must be Python's own process.
  "$python" "$srcdir/lib/model.py" hold "$uri" "$ready" &
  helper_pids+=($!)
  await -p $! test -e "$ready"
}

drop_connections ()
{
  local pid

  for pid in "${helper_pids[@]}"; do
    kill -TERM "$pid"
    wait "$pid" || :
  done
  helper_pids=()
}

# hold_in_qemu_io ARGUMENT...: starts qemu-io, which has read the image when this returns,
# and has it open until end_qemu_io.  $qemu_io is its process.
hold_in_qemu_io ()
{
  rm -f "$tmp/qemu-io.fifo"
  mkfifo "$tmp/qemu-io.fifo"
  : > "$tmp/qemu-io.log"        # not that of the one before
  qemu-io "$@" < "$tmp/qemu-io.fifo" > "$tmp/qemu-io.log" 2>&1 &
  qemu_io=$!
  helper_pids+=("$qemu_io")
  exec 9> "$tmp/qemu-io.fifo"
  echo 'read 0 512' >&9
  await -p "$qemu_io" grep -q 'read 512/512' "$tmp/qemu-io.log" ||
    fail "qemu-io does not read: $(cat "$tmp/qemu-io.log")"
}

end_qemu_io ()
{
  # (A server that was started meanwhile has the pipe open, too.)
  echo quit >&9
  exec 9>&-
  wait "$qemu_io"
  helper_pids=()
}

# --- images ---

# make_image FILE SIZE [OPTIONS]: creates an image; OPTIONS as for qemu-img -o.
make_image ()
{
  qemu-img create -q -f qcow2 ${3:+-o "$3"} "$1" "$2"
}

# io FILE COMMAND..., io_as FORMAT FILE COMMAND...: commands of qemu-io.  Discards are
# not ignored.
io ()
{
  io_as qcow2 "$@"
}

io_as ()
{
  local command
  local -a options=()

  for command in "${@:3}"; do options+=(-c "$command"); done
  qemu-io -f "$1" -d unmap "${options[@]}" "$2" > /dev/null
}

# random_file FILE BYTES: writes reproducible contents, different for each FILE.
random_file ()
{
  "$python" - "$1" "$2" <<'PY'
import os, random, sys
name, size = sys.argv[1], int(sys.argv[2])
r = random.Random(os.path.basename(name))
with open(name, "wb") as f:
    while size > 0:
        n = min(size, 1 << 20)
        f.write(r.randbytes(n))
        size -= n
PY
}

# check_clean IMAGE: after a clean stop, not even leaks are allowed.
check_clean ()
{
  qemu-img check -f qcow2 "$1"
}

# check_leaks_only IMAGE: after a crash, leaks are allowed, but corruption is not.
check_leaks_only ()
{
  local status=0

  qemu-img check -f qcow2 "$1" || status=$?
  case $status in
    0|3) ;;
    *) fail "qemu-img check of $1: status $status" ;;
  esac
}

# same_as_raw IMAGE RAW: QEMU must read the contents of RAW from the image.
same_as_raw ()
{
  local said

  # (It only warns if the sizes differ.)
  said="$(qemu-img compare -f qcow2 -F raw "$1" "$2")" &&
    [ "$said" = "Images are identical." ]
}

# header_patch FILE OFFSET FORMAT VALUE [OFFSET FORMAT VALUE]...: overwrites big-endian
# fields; FORMAT is one of Python's struct letters (B H I Q), or s for bytes in hex.
header_patch ()
{
  "${python:-python3}" "$srcdir/lib/patch.py" "$@"
}

# is_dirty IMAGE, is_marked_corrupt IMAGE: is this bit of a version 3 header set?
is_dirty ()
{
  [ $(( 0x$(od -An -tx1 -j79 -N1 "$1" | tr -d ' ') & 1 )) -ne 0 ]
}

is_marked_corrupt ()
{
  [ $(( 0x$(od -An -tx1 -j79 -N1 "$1" | tr -d ' ') & 2 )) -ne 0 ]
}

# virtual_size IMAGE [FORMAT], in bytes.
virtual_size ()
{
  qemu-img info -f "${2:-qcow2}" "$1" | sed -n 's/^virtual size:.*(\([0-9]*\) bytes)$/\1/p'
}

# allocated_kib FILE: the space that the host has allocated.
allocated_kib ()
{
  du -k "$1" | cut -f1
}

file_size ()
{
  stat -c %s "$1"
}

# fingerprint FILE: contents, size and time of the last change.
fingerprint ()
{
  # (It takes a tenth of sha256sum's time.)
  cksum < "$1"
  stat -c '%s %y' "$1"
}

# bitmaps_of IMAGE: "NAME:GRANULARITY:FLAGS" of each bitmap, as QEMU finds them.
bitmaps_of ()
{
  qemu-img info -f qcow2 --output=json "$1" | "$python" -c '
import json, sys
data = json.load(sys.stdin)["format-specific"]["data"]
for b in data.get("bitmaps", []):
    print("%s:%d:%s" % (b["name"], b["granularity"], ",".join(sorted(b["flags"]))))'
}

# bitmap_map IMAGE BITMAP: nbdinfo's lines about it, from QEMU.
bitmap_map ()
{
  nbdinfo --map="qemu:dirty-bitmap:$2" -- [ qemu-nbd -r -f qcow2 -B "$2" "$1" ]
}

# marked IMAGE BITMAP: "OFFSET LENGTH" of what is marked, as QEMU finds it.
marked ()
{
  bitmap_map "$@" | awk '$3 == 1 { print $1, $2 }'
}

# nothing_marked IMAGE BITMAP
nothing_marked ()
{
  marked "$@" | diff /dev/null -
}

# serve_matrix CLUSTER-SIZE VIRTUAL-SIZE SECONDS: sends random requests to images of both
# versions and all refcount widths (to three of them in the short suite), then lets qemu-img
# check them.  Prints a row for each.
serve_matrix ()
{
  local cluster="$1" size="$2" seconds="$3" compat bits img row

  sample 3 v2:16 v3:1 v3:2 v3:4 v3:8 v3:16 v3:32 v3:64
  for row in "${sample[@]}"; do
    compat="${row%:*}" bits="${row#*:}"
    img="$tmp/$compat-$bits.qcow2"
    rm -f "$tmp/model.raw"
    if [ "$compat" = v2 ]; then
      make_image "$img" "$size" "compat=v2,cluster_size=$cluster"
    else
      make_image "$img" "$size" "compat=v3,cluster_size=$cluster,refcount_bits=$bits"
    fi
    start_nbdkit file="$img"
    model random "$uri" "$tmp/model.raw" --seconds "$seconds" --connections 3 \
      --cluster "$cluster" | tee "$tmp/out"
    stop_nbdkit main
    check_clean "$img"
    same_as_raw "$img" "$tmp/model.raw"
    printf 'MATRIX %s cluster_size=%-7s refcount_bits=%-2s %s\n' \
      "$compat" "$cluster" "$bits" "$(tail -n 1 "$tmp/out")"
    rm -f "$img"
  done
}

# kill_traced: kills a server that runs under NBDKIT_WRAPPER, if it is still running.
kill_traced ()
{
  local pid

  pid="$(cat "$tmp/main.pid")"
  # (It may end by itself just now.)
  if grep -q nbdkit "/proc/$pid/comm"; then kill -KILL "$pid" || :; fi
  wait "${server_pid[main]}" || :
  unset "server_pid[main]"
}

# killed_at_every_write IMAGE JUDGE SCRIPT: runs SCRIPT (nbdsh) on a copy of IMAGE, and
# kills the server (SIGKILL) just before the first system call that changes the image or
# makes it durable; then again just before the second, and so on, until the script
# completes.  Each time it calls JUDGE (a function) with the image that is left.  (In the
# short suite it chooses some of these calls.)
killed_at_every_write ()
{
  local image="$1" judge="$2" script="$3" call n step total=0 survived wrapper

  requires strace -f -e trace=pwrite64 -e inject=pwrite64:signal=KILL:when=1 true
  # strace counts each call of each thread apart: hence one after the other, and one
  # thread.
  for call in pwrite64 pwritev pwritev2 fdatasync fallocate ftruncate; do
    survived=no
    long_suite && step=1 || step=3
    for ((n = 1 + RANDOM % step; n < 400; n += 1 + RANDOM % (2 * step - 1))); do
      cp --sparse=always "$image" "$tmp/killed.qcow2"
      wrapper="strace -f -qq -o /dev/null -e trace=$call"
      wrapper+=" -e inject=$call:signal=KILL:when=$n"
      NBDKIT_WRAPPER="$wrapper" start_nbdkit -t 1 -- file="$tmp/killed.qcow2"
      if nbdsh_run -c "$script"; then survived=yes; fi
      kill_traced
      check_leaks_only "$tmp/killed.qcow2"
      "$judge" "$tmp/killed.qcow2"
      if [ "$survived" = yes ]; then break; fi
      total=$((total + 1))
    done
    [ "$survived" = yes ] || fail "no end of writes"
  done
  echo "killed at $total places"
  [ "$total" -gt 0 ]
}
