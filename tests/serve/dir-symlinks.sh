#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# dir-symlinks=follow serves symbolic links that stay below the directory.  Links that leave
# it at any step are refused, also if somebody changes them all the time.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version

d="$tmp/disks"
mkdir -p "$d/.pool/deep" "$d/sub" "$tmp/outside"
make_image "$d/.pool/one.qcow2" 1M
make_image "$d/.pool/deep/two.qcow2" 2M
make_image "$d/file.qcow2" 3M
make_image "$tmp/outside/secret.qcow2" 5M

# Links that are served.
declare -A good=(
  [pool.qcow2]=.pool/one.qcow2
  [deep.qcow2]=.pool/deep/two.qcow2
  [beside.qcow2]=file.qcow2
  [around.qcow2]=sub/../.pool/deep/../one.qcow2
  [twice.qcow2]=pool.qcow2
  [through.qcow2]=sub/dir-link/two.qcow2
)
ln -s ../.pool/deep "$d/sub/dir-link"
for name in "${!good[@]}"; do ln -s "${good[$name]}" "$d/$name"; done

# Links that are not.
ln -s ../../outside "$d/.pool/out"
declare -A bad=(
  [out.qcow2]=../outside/secret.qcow2
  [absolute.qcow2]="$tmp/outside/secret.qcow2"
  [absolute-inside.qcow2]="$d/file.qcow2"
  [back.qcow2]="../disks/file.qcow2"
  [through-out.qcow2]=.pool/out/secret.qcow2
  [out-and-back.qcow2]=.pool/out/../disks/file.qcow2
  [root.qcow2]=/../../../../../../../etc/passwd
  [dots.qcow2]=../../../../../../../../../../../../../../etc/passwd
  [proc.qcow2]="/proc/self/fd/0"
  [loop.qcow2]=loop.qcow2
  [dangling.qcow2]=none.qcow2
  [directory.qcow2]=sub
  [itself.qcow2]=.
  [fifo.qcow2]=.pool/fifo
  [null.qcow2]=.pool/null
)
mkfifo "$d/.pool/fifo"
ln -s /dev/null "$d/.pool/null"
for name in "${!bad[@]}"; do ln -s "${bad[$name]}" "$d/$name"; done
previous=file.qcow2
for i in {1..45}; do
  ln -s "$previous" "$d/.chain$i"
  previous=".chain$i"
done
ln -s "$previous" "$d/chain.qcow2"
bad[chain.qcow2]=$previous

listed ()
{
  nbdinfo --list --json "$uri" | "$python" -c '
import json, sys
for e in json.load(sys.stdin)["exports"]:
    print(e["export-name"])' | sort
}
size_of ()
{
  nbdinfo --size "$(export_uri "$1")"
}
# (Several names mean the same image, which the last client has just left.)
has_size ()
{
  [ "$(size_of "$1")" = "$2" ]
}

declare -A sizes=()
for name in "${!good[@]}"; do sizes[$name]=$(virtual_size "$d/${good[$name]}"); done

# Nothing of this without the parameter.
start_nbdkit dir="$d"
[ "$(listed)" = file.qcow2 ]
for name in "${!good[@]}" "${!bad[@]}"; do
  if size_of "$name"; then fail "$name is served without dir-symlinks=follow"; fi
done
stop_nbdkit
start_nbdkit dir="$d" dir-symlinks=refuse
[ "$(listed)" = file.qcow2 ]
stop_nbdkit

start_nbdkit dir="$d" dir-symlinks=follow
main_uri=$uri
diff <(listed) <(printf '%s\n' file.qcow2 "${!good[@]}" | sort)
for name in "${!good[@]}"; do
  await has_size "$name" "${sizes[$name]}"
done
for name in "${!bad[@]}"; do
  if size_of "$name"; then fail "$name is served"; fi
done
# The names that clients send are as narrow as before.
for name in .pool/one.qcow2 .pool .chain1 sub/dir-link/two.qcow2 ../outside/secret.qcow2 \
            .. . pool.qcow2/.. ; do
  if size_of "$name"; then fail "'$name' is served"; fi
done
server_lives main
why='a symbolic link leads out of the directory, or is absolute'
for name in out absolute absolute-inside back through-out out-and-back root dots; do
  grep "$name.qcow2: cannot open: $why" "$tmp/main.log"
done
grep 'loop.qcow2: cannot open: Too many levels of symbolic links' "$tmp/main.log"
grep 'fifo.qcow2: cannot open: is a FIFO' "$tmp/main.log"
grep 'directory.qcow2: cannot open: is a directory' "$tmp/main.log"

# What is written arrives in the file, which has one writer at a time, by whatever name.
uri=$(export_uri pool.qcow2)
nbdsh_run -c 'h.pwrite(b"hello", 4096)' -c 'h.flush()'
hold_connection
nbdsh_run -c 'h.pwrite(b"y", 0)'
if size_of twice.qcow2; then fail "opened twice"; fi
drop_connections
uri=$main_uri
stop_nbdkit
check_clean "$d/.pool/one.qcow2"
qemu-img convert -f qcow2 -O raw "$d/.pool/one.qcow2" "$tmp/one.raw"
[ "$(dd if="$tmp/one.raw" bs=1 skip=4096 count=5 status=none)" = hello ]
[ -L "$d/pool.qcow2" ]

# A relative backing file is beside the link, for us and for QEMU.
qemu-img create -u -q -f qcow2 -b base.qcow2 -F qcow2 "$d/.pool/over.qcow2" 1M
ln -s .pool/over.qcow2 "$d/over.qcow2"
start_nbdkit -r -- dir="$d" dir-symlinks=follow
if size_of over.qcow2; then fail "without its backing file"; fi
cp "$d/file.qcow2" "$d/base.qcow2"
qemu-img info -U --backing-chain "$d/over.qcow2"
await has_size over.qcow2 1048576
stop_nbdkit

# Links, and directories on their way, that lead elsewhere all the time.  Only inside is
# anything served.
start_nbdkit dir="$d" dir-symlinks=follow
"$python" - "$d" "$tmp/outside" "$sock" <<'PY'
import nbd, os, sys, threading
d, outside, sock = sys.argv[1:]
stop = False
def put(target, name):
    os.symlink(target, d + "/.new")
    os.rename(d + "/.new", name)
def swap():
    os.mkdir(d + "/.a")
    os.link(d + "/file.qcow2", d + "/.a/secret.qcow2")
    put(".way/../.a/secret.qcow2", d + "/through.qcow2")
    while not stop:
        put(".pool/deep/two.qcow2", d + "/swapped.qcow2")
        put(".a", d + "/.way")
        put("../outside/secret.qcow2", d + "/swapped.qcow2")
        put("../outside", d + "/.way")
        # A directory that leaves the tree while a link leads through it.
        os.rename(d + "/.a", outside + "/.a")
        os.rename(outside + "/.a", d + "/.a")
t = threading.Thread(target=swap)
t.start()
served = 0
try:
    for i in range(150):
        h = nbd.NBD()
        h.set_export_name(("swapped.qcow2", "through.qcow2")[i % 2])
        try:
            h.connect_unix(sock)
        except nbd.Error:
            continue
        served += 1
        assert h.get_size() != 5 << 20
        h.shutdown()
finally:
    stop = True
    t.join()
print("%d times served" % served)
assert served > 0
PY
server_lives main
stop_nbdkit

refused 'dir-symlinks=follow requires dir=DIRECTORY' "$d/file.qcow2" dir-symlinks=follow
refused 'dir-symlinks=maybe' dir="$d" dir-symlinks=maybe
