#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A virtual machine that writes files, and reads them again, notices nothing while its disk
# is changed (snapshots, commit, stream, growth, moves to another file and to an NBD server)
# and its server is replaced (for another configuration, and after kill -9) behind a socket
# that stays, as systemd's do.  No new client is refused meanwhile.  In the end, checksums
# inside and outside agree, and the filesystem and all images are clean.
#
# Its kernel is in build/guest (scripts/test puts it there).  Takes 14 seconds of a
# processor.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
guest="$srcdir/../build/guest"
[ -e "$guest/lib" ] || skip "no kernel in build/guest: scripts/test puts it there"
for program in qemu-system-x86_64 cpio debugfs e2fsck mke2fs; do
  requires command -v "$program"
done
requires busybox --help
requires "$NBDKIT" --dump-plugin file

modules="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci"
modules+=" virtio_blk"

# The guest: rounds of a file that is written, and all that are read again, until the host
# sends a line.
mkdir -p "$tmp/initrd.d/"{bin,dev,proc,root,lib}
cp "$(command -v busybox)" "$tmp/initrd.d/bin/busybox"
for library in $(ldd "$(command -v busybox)" | grep -o '/[^ ]*'); do
  mkdir -p "$tmp/initrd.d${library%/*}"
  cp "$library" "$tmp/initrd.d$library"
done
for module in $modules; do
  find "$guest/lib" -name "$module.ko" -exec cp {} "$tmp/initrd.d/lib" ';'
done
cat > "$tmp/initrd.d/init" <<END
#!/bin/busybox sh
PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for m in $modules; do insmod /lib/\$m.ko; done
mount -t ext4 /dev/vda /root || echo WRONG mount
cd /root
(read line; touch /enough) < /dev/ttyS0 &
n=0
while [ ! -e /enough ]; do
  f=file\$((n % 7))
  seq \$n \$((n + 9000)) > \$f
  md5sum file* > sums
  sync
  echo 3 > /proc/sys/vm/drop_caches
  md5sum -c -s sums || echo WRONG sum
  n=\$((n + 1))
  echo "round \$n"
done
cd /
umount /root || echo WRONG umount
poweroff -f
END
chmod +x "$tmp/initrd.d/init"
(cd "$tmp/initrd.d" && find . | cpio -o -H newc --quiet | gzip -1) > "$tmp/initrd"

d="$tmp/images"
mkdir "$d"
truncate -s 32M "$tmp/disk.raw"
mke2fs -q -t ext4 "$tmp/disk.raw"
qemu-img convert -f raw -O qcow2 "$tmp/disk.raw" "$d/a.qcow2"
rm "$tmp/disk.raw"
qemu-img create -q -f qcow2 "$d/b.qcow2" 64M
qemu-img create -q -f qcow2 "$d/far.qcow2" 64M
truncate -s 128M "$d/far.qcow2"         # NBD exports do not grow
nbdkit --exit-with-parent -f -U "$sockdir/far" file "$d/far.qcow2" &
helper_pids+=($!)
await -p "$!" listens "$sockdir/far"

PYTHONPATH="$srcdir/lib" "$python" - "$NBDKIT" "$PLUGIN" "$sockdir" "$tmp" "$guest" <<'PY'
import os
import re
import socket
import subprocess
import sys
import threading
import time
import nbd
from qmp import Client

nbdkit, plugin, sockdir, tmp, guest = sys.argv[1:]
d, path, control = tmp + "/images/", sockdir + "/vm", sockdir + "/qmp"
listening = socket.socket(socket.AF_UNIX)
listening.bind(path)
listening.listen(100)
os.dup2(listening.fileno(), 3)

def start(image, *parameters):
    global server, c
    server = subprocess.Popen(
        ["sh", "-c", 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"', "-", nbdkit, "-f",
         "--exit-with-parent", plugin, image, "control=" + control, *parameters],
        pass_fds=[3])
    while True:
        try:
            c = Client(control)
            return
        except (FileNotFoundError, ConnectionRefusedError):
            assert server.poll() is None

start(d + "a.qcow2")
vm = subprocess.Popen(
    ["qemu-system-x86_64", "-accel", "tcg", "-m", "128M", "-nographic", "-nic", "none",
     "-no-reboot", "-kernel", guest + "/vmlinuz", "-initrd", tmp + "/initrd",
     "-append", "console=ttyS0 quiet no_timer_check panic=-1",
     # What was not flushed may be lost by kill -9: each write is flushed.
     "-drive", "if=virtio,cache=writethrough,driver=raw,file.driver=nbd,"
     "file.server.type=unix,file.server.path=%s,file.reconnect-delay=600" % path],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
said = []

def rounds(n=2):
    """The guest has done so many more."""
    while n:
        line = vm.stdout.readline()
        assert line, "".join(said)
        said.append(line.decode(errors="replace"))
        print(said[-1], end="", flush=True)
        n -= "round" in said[-1]

# Clients that come all the time.
stop, errors, clients = threading.Event(), [], [0]
def connect():
    while not stop.is_set():
        began = time.monotonic()
        try:
            h = nbd.NBD()
            h.connect_unix(path)
            clients[0] += 1
            h.shutdown()
        except Exception as e:
            # (Only a server that was killed drops those that it has accepted; and one that
            # ends gives a client one second for the handshake.)
            if (not killed and time.monotonic() - began < 0.9) or "refused" in str(e):
                errors.append(e)
        stop.wait(0.02)
killed = False

def ends(id):
    e = c.until_event("BLOCK_JOB_COMPLETED", device=id)[-1]
    assert "error" not in e["data"], e
    c.until_event("JOB_STATUS_CHANGE", id=id, status="null")

def move(name, file):
    c.get("blockdev-add", driver="qcow2", node_name=name, file=file)
    c.get("blockdev-mirror", job_id=name, device="disk", target=name, sync="full")
    c.until_event("BLOCK_JOB_READY", device=name)
    rounds(1)
    c.get("job-complete", id=name)
    ends(name)
    rounds()

rounds()
thread = threading.Thread(target=connect, daemon=True)
thread.start()

# --- The disk changes.
c.get("blockdev-snapshot-internal-sync", device="disk", name="s")
rounds()
c.get("blockdev-snapshot-delete-internal-sync", device="disk", name="s")
for name in "top1", "top2", "top3":
    c.get("blockdev-snapshot-sync", device="disk", snapshot_file=d + name + ".qcow2",
          snapshot_node_name=name)
    rounds(1)
c.get("block-commit", device="disk", job_id="commit", top_node="top1")
ends("commit")
rounds()
c.get("block-stream", device="disk", job_id="stream")
ends("stream")
rounds()
c.get("block_resize", device="disk", size=64 << 20)
rounds()
move("b", {"driver": "file", "filename": d + "b.qcow2"})
move("far", {"driver": "nbd", "server": {"type": "unix", "path": sockdir + "/far"}})
subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", d + "c.qcow2", "64M"], check=True)
move("c", {"driver": "file", "filename": d + "c.qcow2"})

# --- The server is replaced.
for parameters in ["checkpoint-interval=1"], []:
    server.terminate()
    assert server.wait() == 0, server.returncode
    start(d + "c.qcow2", *parameters)
    rounds()
for _ in range(2):
    killed = True
    server.kill()
    server.wait()
    start(d + "c.qcow2")
    rounds()

stop.set()
thread.join()
assert not errors, errors
print(clients[0], "clients")
vm.stdin.write(b"\n")
vm.stdin.close()
rest = vm.stdout.read().decode(errors="replace")
print(rest)
assert vm.wait() == 0
assert not re.search("WRONG|I/O error|EXT4-fs (error|warning)", "".join(said) + rest)
server.terminate()
assert server.wait() == 0
PY

for image in a b c far top2 top3; do check_clean "$d/$image.qcow2"; done
qemu-img convert -f qcow2 -O raw "$d/c.qcow2" "$tmp/now.raw"
e2fsck -f -n "$tmp/now.raw"
mkdir "$tmp/files"
debugfs -R "rdump / $tmp/files" "$tmp/now.raw"
(cd "$tmp/files" && md5sum -c sums)
