#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A copy that was cut off goes on with the next backup, and what the manifest says to be done is
# not read again: the program is killed at several places, the server is killed, too, or there
# is no space.  The generation shows the disk of the first instant, although clients have
# written since, and the next one is incremental.  Two disks go on together.
#
# Environment: SEED.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_namespace
. "$srcdir/lib/img.sh"
. "$srcdir/lib/random.sh"
requires strace -f -e trace=renameat -e inject=renameat:signal=KILL:when=1 true

cat > steps.py <<'END'
import json, os, random, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from backups import Backups
from qmp import Client, connect
img, sock, qmp, what = sys.argv[2:6]
SIZE = 48 << 20
MIB = 1 << 20
models = {"a": bytearray(SIZE), "b": bytearray(SIZE)}
disks = ["a", "b"] if what == "two" else ["a"]
random.seed(1)
handles = {}

def repository(disk):
    return "small/backups" + ("/" + disk if len(disks) > 1 else "")

def device(disk):
    return disk if len(disks) > 1 else "disk"

def change(n=20, length=5000):
    for disk in disks:
        for _ in range(n if sock else 4):
            at = random.randrange(SIZE - length)
            data = random.randbytes(1) * length
            models[disk][at:at + length] = data
            if sock:
                handles[disk].pwrite(data, at)
            else:
                subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write -P %d %d %d" %
                                       (data[0], at, length), "images/" + disk],
                                      stdout=subprocess.DEVNULL)

def fill():
    """All of it is new: there is no block of zeros."""
    for disk in disks:
        for at in range(0, SIZE, MIB):
            data = bytes([random.randrange(1, 256)]) * MIB
            models[disk][at:at + MIB] = data
            if sock:
                handles[disk].pwrite(data, at)
        if not sock:
            with open("fill.raw", "wb") as f:
                f.write(models[disk])
            subprocess.check_call(["qemu-img", "convert", "-n", "-f", "raw", "-O", "qcow2",
                                   "fill.raw", "images/" + disk])

def command(*options):
    return ([img] + (["--control", qmp] if sock else []) + ["backup", "--output=json"] +
            list(options) + [device(d) if sock else "images/" + d for d in disks] +
            ["small/backups"])

def part(disk):
    text = ""
    while not text:             # (one that is replaced is emptied)
        with open(repository(disk) + "/manifest.json") as f:
            text = f.read()
    return json.loads(text).get("part")

def reads():
    """Of snapshots and bitmaps, once the server has noticed that no client is left."""
    while sock:
        exports = [e for s in c.get("query-blockstats") if s["device"] in map(device, disks)
                   for e in s["x-statistics"]["exports"] if "backup-" in e["export"]]
        if not any(e["clients"] for e in exports):
            return sum(e["read"]["bytes"] for e in exports)
        time.sleep(0.02)

def cut_off(*options, call=None, when=1, after=None):
    """Kills it there, or when the manifest says that something was done."""
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call, "-e",
              "inject=%s:signal=KILL:when=%d" % (call, when)] if call else []
    # (Slowly, so that it does not end before it is killed.)
    p = subprocess.Popen(strace + command("-r", "6M" if call else "4500k", *options))
    if call:
        assert p.wait() in (-9, 137)
    else:
        last = disks[-1]
        while p.poll() is None and not (os.path.exists(repository(last) + "/manifest.json") and
                                        part(last) and part(last)["done"] > 0):
            time.sleep(0.02)
        assert p.poll() is None, "it was not killed"
        if after:
            after()
        p.kill()
        p.wait()
    done = [part(d)["done"] for d in disks]
    assert 0 < sum(done) <= SIZE * len(disks), done
    assert all(os.path.getsize(repository(d) + "/" + f) for d in disks
               for f in os.listdir(repository(d)) if f.endswith(".part"))
    return sum(done)

def go_on(model, done, *options, kind, total=SIZE):
    before = reads()
    told = json.loads(subprocess.check_output(command(*options)))
    assert [(g["resumed"], g["kind"]) for g in told] == [(True, kind)] * len(disks), told
    # (One that is verified is read again.)
    if "--verify" not in options:
        assert not sock or reads() - before == len(disks) * total - done, (
            reads() - before, done)
    judge(model)

def judge(model):
    for disk in disks:
        b = backups[disk]
        number = b.note(model[disk])["number"]
        assert b.models[number] == model[disk]
        b.judge()
        left = {g["file"] for g in b.list()} | {"manifest.json", ".lock"}
        assert set(os.listdir(repository(disk))) == left, os.listdir(repository(disk))

def now():
    return {d: bytes(models[d]) for d in disks}

def begins(kind, *options):
    """A backup that does not go on."""
    p = subprocess.run(command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, check=True)
    assert [(g["resumed"], g["kind"]) for g in json.loads(p.stdout)] == [
        (False, kind)] * len(disks), p.stdout
    judge(now())
    return p.stderr

def open_handles():
    global c
    for disk in disks if sock else []:
        handles[disk] = connect(sock, disk if len(disks) > 1 else "")
    if sock:
        c = Client(qmp)

backups = {d: Backups(img, repository(d)) for d in disks}
open_handles()
fill()
model = now()
if what == "full":
    change()
    p = subprocess.run(command("-r", "4M"), stderr=subprocess.PIPE, text=True)
    assert p.returncode == 1 and "No space left" in p.stderr, p.stderr
    assert "the next one goes on with it" in p.stderr, p.stderr
    model, done = now(), part("a")["done"]
    change()
    assert done > 0 and subprocess.call(command()) == 1
    assert part("a")["done"] >= done
    change()
    subprocess.check_call(["mount", "-o", "remount,size=1G", "small"])
    go_on(model, done, kind="full")
    begins("incremental")
elif what == "server":
    begins("full")
    fill()
    model = now()
    done = cut_off(after=lambda: os.kill(int(sys.argv[6]), signal.SIGKILL))
    with open("expected", "wb") as f:
        f.write(model["a"])
    print(done)
elif what == "restarted":
    with open("expected", "rb") as f:
        model = {"a": f.read()}
    # (The model of the first one is not known any more.)
    backups["a"].judge = lambda: None
    models["a"][:] = model["a"]
    change()
    go_on(model, part("a")["done"], kind="incremental")
    subprocess.check_call(["qemu-img", "compare", "-f", "raw", "-F", "qcow2", "expected",
                           "small/backups/000002.qcow2"])
    backups["a"].models = {}
    begins("incremental")
elif what == "two":
    done = cut_off()
    change()
    go_on(model, done, kind="full")
    begins("incremental")
    fill()
    cut_off()
    was, disks = disks, ["a"]
    p = subprocess.run([img, "--control", qmp, "backup", "a", "small/backups/a"], text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.returncode == 0 and "it was a backup of other disks, too" in p.stderr, p
    disks = was
    backups["a"].note(models["a"])
    begins("incremental")
else:
    # When the manifest is to name the complete generation.
    options = ["-O", "raw"] if what == "rest" else []
    done = cut_off(*options, call="renameat", when=2)
    change()
    go_on(model, done, *options, kind="full")
    assert begins("incremental") == ""
    fill()
    model = now()
    done = cut_off(after=change if sock else None)
    change()
    # Twice in a row.
    done = max(done, cut_off())
    change()
    go_on(model, done, "--verify", "-c", kind="incremental")
    begins("incremental", "--keep", "2")
    # What was copied is not there any more, or something else is.
    for wrong in os.environ["WRONG"].split():
        fill()
        cut_off()
        file = repository("a") + "/%06d.qcow2.part" % (backups["a"].list()[-1]["number"] + 1)
        if wrong == "file":
            subprocess.check_call(["cp", file, "other"])
            subprocess.check_call(["mv", "other", file])
            why = "its file is not there, or another one"
        elif wrong == "snapshot":
            if sock:
                # (Until the server has noticed that the client is gone.)
                while "error" in c.ask("blockdev-snapshot-delete-internal-sync",
                                       name=part("a")["bitmap"], device=device("a")):
                    time.sleep(0.02)
            else:
                subprocess.check_call(["qemu-img", "snapshot", "-d", part("a")["bitmap"],
                                       "images/a"])
            why = "the image does not have its snapshot and bitmap"
        else:
            why = "--full was given"
        change()
        told = begins("full" if wrong == "options" else "incremental",
                      *["--full"] if wrong == "options" else [])
        assert "which was cut off, cannot go on: " + why in told, told
        if not sock:
            break
if what not in ("server", "restarted") and sock:
    for d in c.get("query-block"):
        assert "snapshots" not in d["inserted"]["image"], d
        assert len(d["inserted"]["dirty-bitmaps"]) == 1
END

# begin [SIZE]: of the filesystem of the repositories.
begin ()
{
  umount small 2>/dev/null || :
  rm -rf images small
  mkdir images small
  mount -t tmpfs -o size="${1:-2G}" none small
  make_image images/a 48M
  make_image images/b 48M
}
steps ()
{
  "$python" steps.py "$srcdir/lib" "$IMG" "$@"
}

sample 1 file snapshot options
export WRONG="${sample[*]}"
sample 2 live full two server rest
for what in "${sample[@]}"; do
  if [ $what = full ]; then begin 40M; else begin; fi
  # (nbdkit before 1.34 aborts if a client with requests in flight is killed, but for -t 1.)
  case $what in
    live|full) start_nbdkit -t 1 -- control="$sockdir/qmp" images/a ;;
    two) start_nbdkit -t 1 -- control="$sockdir/qmp" dir="$PWD/images" ;;
    server)
      start_nbdkit control="$sockdir/qmp" bitmap-durable=true images/a
      steps "$sock" "$sockdir/qmp" server "$nbdkit_pid"
      wait "$nbdkit_pid" || :
      start_nbdkit control="$sockdir/qmp" bitmap-durable=true images/a
      what=restarted ;;
  esac
  if [ $what = rest ]; then
    steps "" "" rest
    [ "$(qemu-img info images/a | grep -c 'name: backup-')" = 1 ]
  else
    steps "$sock" "$sockdir/qmp" $what
    stop_nbdkit
  fi
  check_clean images/a
done
