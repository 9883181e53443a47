#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A backup with --onto that was cut off goes on, and what the manifest says to be done is not read
# again: the program is killed, once or twice in a row, there is no space, or the target's server
# fails.  The target shows the disk of the first instant, although clients have written since, and
# the next backup is incremental.  An incremental one does not go on with an older copy of the
# target; a full one replaces that, and copies all again.  It begins anew for another target, and
# if the image does not have what it needs.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_namespace
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"
requires_filter error

cat > steps.py <<'END'
import json, os, random, shutil, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from qmp import Client, connect
img, sock, qmp, what, target = sys.argv[2:7]
SIZE = 48 << 20
MIB = 1 << 20
model = bytearray(SIZE)
device = "small/device.raw"

def change(n=20, length=5000):
    for _ in range(n):
        at = random.randrange(SIZE - length)
        model[at:at + length] = data = random.randbytes(1) * length
        h.pwrite(data, at)

def fill():
    """All of it is new: there is no block of zeros."""
    for at in range(0, SIZE, MIB):
        model[at:at + MIB] = data = bytes([random.randrange(1, 256)]) * MIB
        h.pwrite(data, at)

def command(*options):
    onto = ["--onto", target] if target else ["-O", "raw"]
    return [img, "--control", qmp, "backup", "--output=json", *options, *onto, "disk", "backups"]

def run(*options):
    return subprocess.run(command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)

def done():
    text = ""
    while not text:             # (one that is replaced is emptied)
        if not os.path.exists("backups/manifest.json"):
            return 0
        with open("backups/manifest.json") as f:
            text = f.read()
    return json.loads(text).get("part", {"done": 0})["done"]

def reads():
    """Of snapshots and bitmaps, once the server has noticed that no client is left."""
    while True:
        exports = [e for e in c.get("query-blockstats")[0]["x-statistics"]["exports"]
                   if "backup-" in e["export"]]
        if not any(e["clients"] for e in exports):
            return sum(e["read"]["bytes"] for e in exports)
        time.sleep(0.02)

def cut_off(*options, then=lambda p: p.kill()):
    """When the manifest says that more was done than before."""
    # (Slowly, so that it does not end before.)
    before = done()
    p = subprocess.Popen(command("-r", "2M", *options), stderr=subprocess.PIPE, text=True)
    while p.poll() is None and done() <= before:
        time.sleep(0.02)
    assert p.poll() is None, p.communicate()
    then(p)
    told = p.communicate()[1]
    assert p.returncode != 0 and before < done() < SIZE, (before, done(), told)
    return told

def shows(expected):
    with open(device if target else "backups/000001.raw", "rb") as f:
        assert f.read(SIZE) == expected

def succeeds(*options, full):
    p = run(*options)
    assert p.returncode == 0, p.stderr
    [told] = json.loads(p.stdout)
    assert told["kind"] == ("in-place" if target else "full"), told
    assert ("why-full" in told) == full, told
    return told["resumed"], p.stderr

def goes_on(expected, *options, full):
    before, left = reads(), SIZE - done()
    assert succeeds(*options, full=full) == (True, "")
    # (One that is verified is read again.)
    assert "--verify" in options or reads() - before == left, (reads() - before, left)
    shows(expected)
    next_one()

def next_one():
    change()
    assert succeeds(full=False) == (False, "")
    shows(model)

def copies_again(why, expected, *options):
    resumed, told = succeeds(*options, full=True)
    assert resumed and "is copied from its beginning: " + why in told, told
    shows(expected)
    next_one()

def remove_bitmaps():
    for d in c.get("query-block")[0]["inserted"]["dirty-bitmaps"]:
        c.get("block-dirty-bitmap-remove", node="disk", name=d["name"])

def forget():
    shutil.rmtree("backups")
    remove_bitmaps()

def begins_anew(why, *options, full=False):
    resumed, told = succeeds(*options, full=full)
    assert not resumed and "which was cut off, cannot go on: " + why in told, told
    shows(model)

h = connect(sock)
c = Client(qmp)
fill()
if what == "space":
    expected = bytes(model)
    p = run("-r", "4M")
    assert p.returncode == 1 and "No space left" in p.stderr, p.stderr
    assert "the next one goes on with it" in p.stderr and done() > 0, p.stderr
    change()
    assert run().returncode == 1
    subprocess.check_call(["mount", "-o", "remount,size=1G", "small"])
    goes_on(expected, "--verify", full=True)
elif what == "target":
    expected = bytes(model)
    told = cut_off(then=lambda p: open("fail", "w").close())
    assert "the next one goes on with it" in told, told
    change()
    # Nothing is copied, and nothing is lost.
    assert run().returncode == 1
    os.remove("fail")
    goes_on(expected, full=True)
elif what == "files":
    # From a file to the target, and from there to a file.
    for to in (target, ""):
        target, other = "" if to else target, to
        cut_off()
        change()
        target = other
        begins_anew("it goes to another target", full=True)
        if to:
            forget()
elif what == "full":
    expected = bytes(model)
    cut_off()
    change()
    cut_off()
    change()
    goes_on(expected, full=True)
    # Not the first one: the target could be an older copy, which differs little.
    shutil.copy(device, "small/older.raw")
    change(n=1)
    expected = bytes(model)
    cut_off("--full")
    change()
    os.rename("small/older.raw", device)
    copies_again("this may be an older copy", expected, "--full")
    # Another target.
    forget()
    cut_off()
    expected = bytes(model)
    change()
    with open(device, "r+b") as f:
        f.write(bytes(SIZE))
    copies_again("this is another target", expected)
    # What looks like an image, and was there, is replaced without --full, too.
    model[:4] = b"QFI\xfb"
    h.pwrite(b"QFI\xfb", 0)
    next_one()
    remove_bitmaps()
    expected = bytes(model)
    cut_off()
    change()
    copies_again("this may be an older copy", expected)
else:
    assert succeeds(full=True) == (False, "")
    fill()
    expected = bytes(model)
    shutil.copy(device, "small/older.raw")
    cut_off()
    change()
    cut_off()
    change()
    # An older copy of the target.
    os.rename(device, "small/newer.raw")
    os.rename("small/older.raw", device)
    for _ in range(2):
        p = run()
        assert p.returncode == 1 and p.stderr.count("\n") == 1, p.stderr
        assert "is not what the last backup has left there" in p.stderr, p.stderr
    os.rename("small/newer.raw", device)
    goes_on(expected, full=False)
    for wrong in os.environ["WRONG"].split():
        fill()
        cut_off()
        change()
        if wrong == "snapshot":
            # (Until the server has noticed that the client is gone.)
            with open("backups/manifest.json") as f:
                name = json.load(f)["part"]["bitmap"]
            while "error" in c.ask("blockdev-snapshot-delete-internal-sync", name=name,
                                   device="disk"):
                time.sleep(0.02)
            begins_anew("the image does not have its snapshot and bitmap")
        elif wrong == "size":
            for size in (8 * MIB, SIZE):
                h.shutdown()
                while "error" in c.ask("block_resize", device="disk", size=size):
                    time.sleep(0.02)
                h = connect(sock)
            model[8 * MIB:] = bytes(SIZE - 8 * MIB)
            begins_anew("the disk had another size meanwhile")
        elif wrong == "target":
            shutil.copy(device, "small/other.raw")
            was, target = target, "small/other.raw"
            device = "small/other.raw"
            begins_anew("it goes to another target", full=True)
            target = was
            device = "small/device.raw"
            assert succeeds(full=True)[0] is False
        else:
            begins_anew("--full was given", "--full", full=True)
        next_one()
[disk] = c.get("query-block")
assert "snapshots" not in disk["inserted"]["image"], disk
assert len(disk["inserted"]["dirty-bitmaps"]) == 1
assert set(os.listdir("backups")) - {"000001.raw"} == {".lock", "manifest.json"}
END

sample 1 snapshot size target options
export WRONG="${sample[*]}"
sample 2 full incremental space target files
mkdir small
for what in "${sample[@]}"; do
  mount -t tmpfs -o size="$([ $what = space ] && echo 40M || echo 2G)" none small
  truncate -s 50M small/device.raw
  make_image a.qcow2 48M
  # (nbdkit before 1.34 aborts if a client with requests in flight is killed, but for -t 1.)
  start_nbdkit -t 1 -- control="$sockdir/qmp" a.qcow2
  if [ $what = target ]; then
    "$NBDKIT" -f -U "$sockdir/target" --filter=error file small/device.raw error-pwrite=EIO \
      error-pwrite-rate=100% error-pwrite-file="$PWD/fail" </dev/null >/dev/null 2>&1 &
    helper_pids+=($!)
    await -p $! listens "$sockdir/target"
    to="nbd+unix:///?socket=$sockdir/target"
  else
    to=small/device.raw
  fi
  "$python" steps.py "$srcdir/lib" "$IMG" "$sock" "$sockdir/qmp" $what "$to"
  stop_nbdkit
  check_clean a.qcow2
  rm -r a.qcow2 backups
  umount -l small
done
