#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# dir= serves the images of a directory and no other files.  Each is opened when a client
# asks for it and closed when no client uses it any more; all share the memory for
# mappings.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version

d="$tmp/images"
mkdir "$d" "$tmp/outside"

for i in 1 2 3; do
  make_image "$d/$i.qcow2" 64M
  qemu-io -f qcow2 -c "write -P $i 0 1M" "$d/$i.qcow2" > /dev/null
  cp "$d/$i.qcow2" "$tmp/$i.before"
done
qemu-img create -q -f qcow2 -b 3.qcow2 -F qcow2 "$d/with space & overlay.qcow2"
qemu-img snapshot -c old "$d/2.qcow2"
qemu-img bitmap --add "$d/2.qcow2" day
make_image "$tmp/outside/secret.qcow2" 1M
make_image "$d/.hidden.qcow2" 1M
ln -s ../outside/secret.qcow2 "$d/link.qcow2"
ln -s 1.qcow2 "$d/inside.qcow2"
mkdir "$d/sub"
make_image "$d/sub/deep.qcow2" 1M
mkfifo "$d/fifo"
echo "not an image" > "$d/text"
: > "$d/empty"
{ printf 'QFI\373'; head -c 1000 /dev/zero; } > "$d/broken.qcow2"

start_nbdkit dir="$d" l2-cache=1M stats="$tmp/stats.json"

# What is listed.
"$python" - "$sock" > "$tmp/listed" <<'PY'
import nbd, sys
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(sys.argv[1])
names = []
h.opt_list(lambda name, description: names.append(name))
h.opt_abort()
print("\n".join(sorted(names)))
PY
printf '%s\n' 1.qcow2 2.qcow2 3.qcow2 broken.qcow2 'with space & overlay.qcow2' |
  diff - "$tmp/listed"

# What is served.
for i in 1 2 3; do
  nbdcopy "$(export_uri "$i.qcow2")" "$tmp/got.raw"
  qemu-img compare -f raw -F qcow2 "$tmp/got.raw" "$tmp/$i.before"
done
# has_layers: when the last client of 3.qcow2 is known to have left.
has_layers ()
{
  nbdinfo "$(export_uri 'with%20space%20%26%20overlay.qcow2')" | grep '2 layers'
}
await has_layers
nbdinfo "$(export_uri 2.qcow2/old)" | grep 'snapshot of'
nbdinfo --is read-only "$(export_uri 2.qcow2/old)"
nbdinfo "$(export_uri 2.qcow2/bitmap:day)" | grep 'what has changed'
nbdinfo "$(export_uri 2.qcow2/layer:0)" | grep 'layer 0 of 1'

# What is not.
for name in '' . .. / // ../outside/secret.qcow2 ..%2foutside%2fsecret.qcow2 link.qcow2 \
            inside.qcow2 sub sub/deep.qcow2 fifo text empty broken.qcow2 .hidden.qcow2 \
            /1.qcow2 "$d/1.qcow2" 1.qcow2/ 1.qcow2/x 1.qcow2//layer:0 1.qcow2/../2.qcow2 \
            ./1.qcow2 nonesuch "$(printf '%0300d' 1)" 1.qcow2%0a %1b%5b2J; do
  if nbdinfo --size "$(export_uri "$name")"; then
    fail "'$name' is served"
  fi
done
server_lives main
# (A URI can't have these as they are.)
"$python" - "$sock" <<'PY'
import nbd, sys
for name in "x\nnbdkit: error: forged", "\x1b[2J", "1.qcow2/\x1b[2J\nforged", "\x9b2J":
    h = nbd.NBD()
    h.set_export_name(name)
    try:
        h.connect_unix(sys.argv[1])
    except nbd.Error:
        continue
    raise SystemExit("%r is served" % name)
PY
server_lives main
if LC_ALL=C grep -v '^nbdkit: .*debug: ' "$tmp/main.log" | LC_ALL=C grep -P '[\x1b\x80-\xff]|^nbdkit: error: forged|^forged'; then
  fail "a name reaches the terminal"
fi
grep 'there is no image "x\\x0anbdkit: error: forged"' "$tmp/main.log"
grep 'must choose an image' "$tmp/main.log"
grep 'link.qcow2: cannot open: is a symbolic link' "$tmp/main.log"
grep 'broken.qcow2: ' "$tmp/main.log"

# When the last client has left an image is clean and free, though the server runs.
main_uri=$uri
uri=$(export_uri 1.qcow2)
nbdsh_run -c 'h.pwrite(b"x" * 4096, 8 << 20)' -c 'h.flush()'
is_free ()
{
  # (Opened for writing, which no lock but ours would prevent.)
  qemu-img check -q -r leaks -f qcow2 "$1"
}
await is_free "$d/1.qcow2"

# While somebody writes it, it is locked, and others are not.
hold_connection
nbdsh_run -c 'h.pwrite(b"y", 0)'
if qemu-img check -q -f qcow2 "$d/1.qcow2"; then fail "1.qcow2 is not locked"; fi
check_clean "$d/3.qcow2"
drop_connections
await is_free "$d/1.qcow2"

# One that another program has is refused, and served later; others are served meanwhile.
stdbuf -oL qemu-io -f qcow2 -c 'write -P 9 0 1' -c 'sleep 100000' "$d/1.qcow2" \
  > "$tmp/other" &
helper_pids+=($!)
await -p $! grep -q wrote "$tmp/other"
if nbdinfo --size "$uri"; then fail "an image in use is served"; fi
[ "$(nbdinfo --size "$(export_uri 2.qcow2)")" = 67108864 ]
drop_connections || :
helper_pids=()
await is_free "$d/1.qcow2"
nbdinfo --size "$uri"

# One with a data file.
qemu-img create -q -f qcow2 -o data_file="$d/data.raw",data_file_raw=on "$d/data.qcow2" 1M
uri=$(export_uri data.qcow2)
nbdsh_run -c 'assert h.get_size() == 1 << 20' -c 'h.pwrite(b"hello", 4096)'
await is_free "$d/data.qcow2"
[ "$(dd if="$d/data.raw" bs=1 skip=4096 count=5 status=none)" = hello ]
rm "$d/data.qcow2" "$d/data.raw"

# Many clients at once, on all of them; the first ones come at the same time.
"$python" - "$sock" "$main_uri" <<'PY'
import nbd, sys, threading
errors = []
def client(image, n):
    try:
        for round in range(6):
            h = nbd.NBD()
            h.set_export_name("%d.qcow2" % image)
            h.connect_unix(sys.argv[1])
            assert not h.is_read_only()
            at = (16 << 20) + n * (1 << 20)
            for i in range(16):
                h.pwrite(bytes([image * 16 + n]) * 65536, at + i * 65536)
            if n % 2:
                h.flush()
            assert h.pread(1 << 20, at) == bytes([image * 16 + n]) * (1 << 20)
            h.shutdown()
    except Exception as e:
        errors.append((image, n, e))
threads = [threading.Thread(target=client, args=(image, n))
           for n in range(5) for image in (1, 2, 3)]
for t in threads:
    t.start()
for t in threads:
    t.join()
if errors:
    raise SystemExit(errors)
PY
for i in 1 2 3; do
  await is_free "$d/$i.qcow2"
  for n in 0 1 2 3 4; do
    qemu-io -r -f qcow2 -c "read -P $((i * 16 + n)) $((16 + n))M 1M" "$d/$i.qcow2" |
      tee "$tmp/out"
    if grep -q 'verification failed' "$tmp/out"; then fail "wrong data"; fi
  done
done

# A name that changes between an image and a link to the outside never leads there.
make_image "$tmp/outside/large.qcow2" 5M
"$python" - "$d" "$tmp/outside/large.qcow2" "$sock" <<'PY'
import nbd, os, shutil, sys, threading
d, target, sock = sys.argv[1:]
good = d + "/3.qcow2"
name = d + "/swapped.qcow2"
stop = False
def swap():
    n = 0
    while not stop:
        os.symlink(target, d + "/.new")
        os.rename(d + "/.new", name)
        shutil.copy(good, d + "/.new")
        os.rename(d + "/.new", name)
t = threading.Thread(target=swap)
t.start()
served = 0
try:
    for i in range(100):
        h = nbd.NBD()
        h.set_export_name("swapped.qcow2")
        try:
            h.connect_unix(sock)
        except nbd.Error:
            continue
        served += 1
        assert h.get_size() == 64 << 20, h.get_size()
        h.shutdown()
finally:
    stop = True
    t.join()
print("%d times served" % served)
PY

# Two names of one file: whoever comes second can't write it.
ln "$d/3.qcow2" "$d/again.qcow2"
uri=$(export_uri 3.qcow2)
hold_connection
nbdsh_run -c 'h.pwrite(b"y", 0)'
if nbdinfo --size "$(export_uri again.qcow2)"; then fail "opened twice"; fi
drop_connections
uri=$main_uri
stop_nbdkit
for i in 1 2 3; do check_clean "$d/$i.qcow2"; done
# The limit is one for all: 1M, and a little that was changed.
"$python" -c 'import json, sys
stats = json.load(open(sys.argv[1]))
assert 0 < stats["map"]["peak_bytes"] < 1600000 and stats["clusters"]["allocated"] >= 48' \
  "$tmp/stats.json"

# Read-only, and parameters.
start_nbdkit -r -- dir="$d"
before=$(fingerprint "$d/1.qcow2")
nbdinfo --is read-only "$(export_uri 1.qcow2)"
[ "$before" = "$(fingerprint "$d/1.qcow2")" ]
stop_nbdkit
refused 'dir= cannot be used with file=' dir="$d" file="$d/1.qcow2"
refused 'dir= cannot be used with snapshot=' dir="$d" snapshot=old
refused 'dir= cannot be used with bitmap-add=' dir="$d" bitmap-add=x
refused 'dir= cannot be used with backing=PATH' dir="$d" backing="$d/1.qcow2"
refused 'given more than once' dir="$d" dir="$d"
refused 'cannot open the directory' dir="$tmp/nonesuch"
refused 'cannot open the directory' dir="$d/1.qcow2"

# One passphrase for all.
qemu-img create -q -f qcow2 --object secret,id=s,data=hush \
  -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 "$d/luks.qcow2" 1M
start_nbdkit dir="$d" passphrase=hush
nbdinfo "$(export_uri luks.qcow2)" | grep LUKS
nbdinfo "$(export_uri luks.qcow2)" | grep LUKS
nbdinfo --size "$(export_uri 1.qcow2)"
stop_nbdkit

# The list has an end, for nbdkit's sake, and holds no name that would spoil it.
many="$tmp/many"
mkdir "$many"
make_image "$many/a.qcow2" 1M
cp "$many/a.qcow2" "$many/"$'\xff.qcow2'
cp "$many/a.qcow2" "$many/"$'\xc3\xbc.qcow2'
start_nbdkit dir="$many"
nbdinfo --list --json "$uri" | "$python" -c '
import json, sys
names = [e["export-name"] for e in json.loads(sys.stdin.buffer.read().decode())["exports"]]
assert sorted(names) == ["a.qcow2", "\u00fc.qcow2"], names'
stop_nbdkit
head -c 512 "$many/a.qcow2" > "$tmp/start"
"$python" - "$many" "$tmp/start" <<'PY'
import os, sys
start = open(sys.argv[2], "rb").read()
for i in range(10100):
    with open(os.path.join(sys.argv[1], "%d.qcow2" % i), "wb") as f:
        f.write(start[:112])
PY
start_nbdkit dir="$many"
"$python" - "$sock" <<'PY'
import nbd, sys
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(sys.argv[1])
n = h.opt_list(lambda name, description: 0)
assert n == 10000, n
PY
stop_nbdkit
