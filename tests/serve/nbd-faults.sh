#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The NBD server with the image, which loses what was not flushed, meets a fault at the
# N-th request: it closes the connection before or after the request or in the middle of
# the reply, replies garbage or an error, or crashes.  Requests succeed, or fail with EIO
# or the server's error; none hangs; once a flush failed for a lost connection, none
# succeeds.  The image is intact, and what was flushed is there.
#
# Environment: SEED, ITERATIONS (60).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/new" 1M cluster_size=4096,l2_cache_size=4096 2>/dev/null ||
  make_image "$tmp/new" 1M cluster_size=4096
truncate -s 4M "$tmp/new"
export NBDKIT PLUGIN tmp sockdir srcdir python
"$python" - <<'END'
import atexit, errno, nbd, os, random, re, shutil, subprocess, sys
tmp, sockdir = os.environ["tmp"], os.environ["sockdir"]
seed = int(os.environ.get("SEED") or os.environ.get("QCOW2_TEST_SEED")
           or random.getrandbits(32))
print("SEED=%d" % seed)
rng = random.Random(seed)
far, sock = tmp + "/far", sockdir + "/far.sock"
uri = "nbd+unix:///?socket=" + sock
PIECE = 8192
FAULTS = {"drop": errno.EIO, "done": errno.EIO, "half": errno.EIO, "garbage": errno.EIO,
          "crash": errno.EIO, "EIO": errno.EIO, "ENOSPC": errno.ENOSPC,
          "ESHUTDOWN": errno.EIO, "EPERM": errno.EPERM}
LOST = ("drop", "done", "half", "garbage", "crash", "ESHUTDOWN")

shutil.copy(tmp + "/new", far)
server = subprocess.Popen(
    [os.environ["python"], os.environ["srcdir"] + "/lib/remoteserver.py", sock, far],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

atexit.register(server.kill)

def tell(line):
    server.stdin.write(line + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())

tell("count")
while not os.path.exists(sock):
    pass

def compare(when, piece, data, may):
    for at in range(0, PIECE, 512):
        assert bytes(data[at:at + 512]) in [bytes([b]) * 512 for b in may], \
            "%s: piece %d holds %r, may hold %s" % (when, piece, data[at:at + 4], may)

class Case:
    def __init__(self, fault, n):
        self.fault, self.n = fault, n
        self.may = {}               # piece: the bytes that it may contain; first: flushed
        self.errors = []
        self.flush_failed = False

    def attempt(self, what, *args):
        try:
            what(*args)
            return True
        except nbd.Error as e:
            self.errors.append(e.errnum)
            assert e.errnum in (errno.EIO, FAULTS[self.fault]), "%s: %s" % (what, e)
            return False

    def write(self, h, piece, byte):
        self.may.setdefault(piece, [0]).append(byte)
        if byte:
            return self.attempt(h.pwrite, bytes([byte]) * PIECE, piece * PIECE)
        return self.attempt(h.zero, PIECE, piece * PIECE)

    def flush(self, h):
        if not self.attempt(h.flush):
            self.flush_failed = self.errors[-1] == errno.EIO
            return
        assert not self.flush_failed, "a flush succeeds after one failed"
        for piece in self.may:
            if self.clean.get(piece, True):
                self.may[piece] = self.may[piece][-1:]

    def run(self, h):
        self.clean = {}             # piece: did its last write succeed?
        for step in range(24):
            kind = rng.choice("wwwwzrrf")
            piece = rng.randrange(24)
            if kind in "wz":
                self.clean[piece] = self.write(h, piece, 0 if kind == "z" else 1 + step)
            elif kind == "f":
                self.flush(h)
            else:
                got = []
                if self.attempt(lambda: got.append(h.pread(PIECE, piece * PIECE))):
                    may = self.may.get(piece, [0])
                    # (After a crash, what was not flushed may be lost at once, and a
                    # cluster that is new to a piece shows what it contained before.)
                    if self.fault == "crash" and len(may) > 1:
                        may = range(1 + step)
                    elif self.clean.get(piece, True):
                        may = may[-1:]
                    compare("step %d" % step, piece, got[0], may)
        self.flush(h)

    def judge(self):
        r = subprocess.run(["qemu-img", "check", "-q", "-f", "qcow2", far],
                           stdout=subprocess.DEVNULL)
        assert r.returncode in (0, 3), "qemu-img check: %d" % r.returncode
        subprocess.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", far,
                        tmp + "/raw"], check=True)
        with open(tmp + "/raw", "rb") as f:
            disk = f.read()
        for piece, may in self.may.items():
            compare("at the end", piece, disk[piece * PIECE:(piece + 1) * PIECE], may)

def run_case(fault, n):
    shutil.copy(tmp + "/new", far)
    tell("forget")
    case = Case(fault, n)
    tell("arm %d %s" % (n, fault))
    log = open(tmp + "/log", "w")
    stderr = os.dup(2)
    os.dup2(log.fileno(), 2)
    h = nbd.NBD()
    opened = True
    try:
        h.connect_systemd_socket_activation(
            [os.environ["NBDKIT"], os.environ["PLUGIN"], uri, "lock=false",
             "l2-cache=8K", "reconnect=5"])
    except nbd.Error:
        opened = False
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    text = open(tmp + "/log").read()
    try:
        if opened:
            case.run(h)
            h.shutdown()
        else:
            # Only a server that says no is a reason to refuse to start.
            assert fault not in LOST or "size" in text, "not opened: " + text
    finally:
        h = None                    # kills nbdkit, and waits
        count = tell("forget")
        text = open(tmp + "/log").read()
        if any(sys.exc_info()):
            print("%s at request %d of %d\n%s" % (fault, n, count, text))
    case.judge()
    for line in text.splitlines():
        if re.search("error: (despite that, the export was|cannot open the export)", line):
            pass                    # for the client: see errors-name-no-host-file.sh
        elif "error: " in line and "Broken pipe" not in line and "aborting" not in line:
            assert uri in line, "no URI: " + line
    return count, opened, case

met = dict.fromkeys(FAULTS, 0)
failed = dict.fromkeys(FAULTS, 0)
for i in range(int(os.environ.get("ITERATIONS") or 60)):
    fault = list(FAULTS)[i % len(FAULTS)]
    n = rng.randint(1, 30)
    count, opened, case = run_case(fault, n)
    met[fault] += count >= n
    failed[fault] += bool(case.errors)
print("faults met:", met)
print("with errors for the client:", failed)
assert min(met.values()) > 0
END
