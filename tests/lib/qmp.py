# SPDX-License-Identifier: BSD-3-Clause
#
# A client of QMP, for ours and for qemu-storage-daemon's, and clients of NBD beside it.
#
#   c = Client(PATH)                negotiates
#   c.ask("query-jobs", key=value)  the whole answer; _ stands for - in keys
#   c.get(...)                      its "return"; anything else fails
#   c.refuses(TEXT, ...)            fails unless the error's desc has this text
#   c.events                        that came before an answer
#   h = connect(PATH, EXPORT)       libnbd's handle, with base:allocation
#   w = Writers(URI, PATH).start()  clients that write while the disk changes
#   both = Both(SOCKETS, TMP)       clients of the servers that start_both starts
#   both.ask(...), both.get(...)    as above, if both give the same answer
#   both = ServedBoth(...)          the same, with clients of the disks: start_both_served

import json
import random
import socket
import subprocess
import threading

import nbd


def connect(path, export=""):
    h = nbd.NBD()
    h.add_meta_context("base:allocation")
    h.set_export_name(export)
    h.connect_unix(path)
    return h


class Client:
    def __init__(self, path, negotiate=True):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rb")
        self.events = []
        self.greeting = self.hear()
        if negotiate:
            self.get("qmp_capabilities")

    def close(self):
        self.lines.close()
        self.socket.close()

    def say(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())

    def hear(self):
        """The next message; None at the end."""
        line = self.lines.readline()
        assert line == b"" or line.endswith(b"\r\n"), line
        return json.loads(line) if line else None

    def answer(self):
        while True:
            message = self.hear()
            if message is None or "event" not in message:
                return message
            self.events.append(message)

    def until(self, found):
        """All events up to the first that FOUND accepts.  Later ones stay."""
        n = 0
        while True:
            if n == len(self.events):
                event = self.hear()
                assert event and "event" in event, event
                self.events.append(event)
            n += 1
            if found(self.events[n - 1]):
                seen, self.events = self.events[:n], self.events[n:]
                return seen

    def until_event(self, event, **data):
        """The same: up to an event with this data."""
        return self.until(lambda e: e["event"] == event and
                          data.items() <= e["data"].items())

    def until_status(self, *states):
        """The same: up to one of these states of a job."""
        return self.until(lambda e: e["event"] == "JOB_STATUS_CHANGE" and
                          e["data"]["status"] in states)

    def ask(self, command, **arguments):
        message = {"execute": command}
        if arguments:
            message["arguments"] = {key.replace("_", "-"): value
                                    for key, value in arguments.items()}
        self.say(json.dumps(message))
        return self.answer()

    def get(self, command, **arguments):
        answer = self.ask(command, **arguments)
        assert "return" in answer, (command, arguments, answer)
        return answer["return"]

    def refuses(self, text, command, **arguments):
        answer = self.ask(command, **arguments)
        assert "error" in answer and text in answer["error"]["desc"], \
            (command, arguments, answer)

    def node(self):
        """What query-named-block-nodes says about the image."""
        return self.get("query-named-block-nodes")[0]

    def bitmap(self, name):
        found = [b for b in self.node().get("dirty-bitmaps", []) if b["name"] == name]
        return found[0] if found else None


class Both:
    """Our server, and QEMU's, with images in directories of their own: DIR in arguments
    and answers.  DIFFERS says which keys of which objects may differ."""
    def __init__(self, sockets, tmp, differs=lambda key, of: False, negotiate=True):
        self.clients = [Client("%s/%s.qmp" % (sockets, s), negotiate) for s in "ot"]
        self.ours, self.theirs = self.clients
        self.dirs = {self.ours: tmp + "/ours", self.theirs: tmp + "/theirs"}
        self.differs = differs
        self.count = 0

    def plain(self, x, c):
        """Without what may differ."""
        if isinstance(x, dict):
            return {k: self.plain(v, c) for k, v in x.items()
                    if k != "timestamp" and not self.differs(k, x)}
        if isinstance(x, (list, tuple)):
            return [self.plain(v, c) for v in x]
        return x.replace(self.dirs[c], "DIR") if isinstance(x, str) else x

    def named(self, x, c):
        """With the names of that server's files."""
        if isinstance(x, dict):
            return {k: self.named(v, c) for k, v in x.items()}
        if isinstance(x, list):
            return [self.named(v, c) for v in x]
        return x.replace("DIR", self.dirs[c]) if isinstance(x, str) else x

    def each(self, command, **arguments):
        """Their answers."""
        self.count += 1
        return [self.plain(c.ask(command, **self.named(arguments, c)), c)
                for c in self.clients]

    def same(self, what, answers):
        if answers[0] != answers[1]:
            raise SystemExit("%s:\nours:   %s\ntheirs: %s" % (what, *answers))
        return answers[0]

    def compare(self, what, of):
        """OF(client), which is the same for both."""
        return self.same(what, [self.plain(of(c), c) for c in self.clients])

    def ask(self, command, **arguments):
        return self.same((command, arguments), self.each(command, **arguments))

    def get(self, command, **arguments):
        answer = self.ask(command, **arguments)
        assert "return" in answer, (command, arguments, answer)
        return answer["return"]

    def until_event(self, event, **data):
        return self.compare((event, data), lambda c: c.until_event(event, **data))

    def until_status(self, *states):
        return self.compare(states, lambda c: c.until_status(*states))


class ServedBoth(Both):
    """What clients write while a job is ready may be counted in its events, or not yet."""
    def __init__(self, sockets, tmp):
        super().__init__(sockets, tmp, lambda key, of: key in ("len", "offset") and
                         "busy" not in of)
        self.handles = [connect(sockets + s) for s in ("/main.sock", "/t.nbd")]

    def until_ready(self, id):
        return self.until_event("BLOCK_JOB_READY", device=id)

    def until_gone(self, id):
        return self.until_event("JOB_STATUS_CHANGE", id=id, status="null")

    def write(self, data, at):
        for h in self.handles:
            h.pwrite(data, at)
            h.flush()

    def contents(self, c, name, fmt="qcow2"):
        """What QEMU finds in that server's file, which may be in use."""
        shown = self.dirs[c] + "/shown.raw"
        subprocess.run(["qemu-img", "convert", "-U", "-f", fmt, "-O", "raw",
                        "%s/%s" % (self.dirs[c], name), shown], check=True)
        with open(shown, "rb") as f:
            return f.read()

    def same_contents(self, name, fmt="qcow2"):
        a, b = [self.contents(c, name, fmt) for c in self.clients]
        assert a == b, name
        return a


class Writers:
    """N clients that write in the first PART bytes of their shares of the disk, from start
    to rest, and compare what they read with a model: at first the raw image at PATH."""
    def __init__(self, uri, path, n=4, part=None):
        with open(path, "rb") as f:
            self.model = bytearray(f.read())
        self.path = path
        self.share = len(self.model) // n // 512 * 512
        self.part = part or self.share
        self.stop, self.errors = threading.Event(), []
        seed = random.randrange(1 << 32)
        print("seed of the writers:", seed, flush=True)
        self.rngs = [random.Random(seed + i) for i in range(n)]
        self.handles = [nbd.NBD() for _ in range(n)]
        for h in self.handles:
            h.connect_uri(uri)

    def start(self):
        self.stop.clear()
        self.threads = [threading.Thread(target=self.work, args=x, daemon=True)
                        for x in enumerate(zip(self.handles, self.rngs))]
        for t in self.threads:
            t.start()
        return self

    def work(self, i, client):
        h, rng = client
        def place(size):
            return i * self.share + 512 * rng.randrange((self.part - size) // 512)
        try:
            while not self.stop.is_set():
                size = 512 * rng.randrange(1, 256)
                at = place(size)
                data = bytes([rng.randrange(1, 256)]) * size
                if rng.randrange(8) == 0:
                    data = bytes(size)
                    h.zero(size, at)
                else:
                    h.pwrite(data, at)
                self.model[at:at + size] = data
                at = place(size)
                assert h.pread(size, at) == self.model[at:at + size], (at, size)
        except Exception as e:
            self.errors.append(e)

    def rest(self):
        self.stop.set()
        for t in self.threads:
            t.join()
        assert not self.errors, self.errors

    def end(self):
        """All that was written is flushed, and checked; the model is at PATH."""
        self.rest()
        for h in self.handles:
            h.flush()
            assert h.pread(len(self.model), 0) == self.model
        with open(self.path, "wb") as f:
            f.write(self.model)
