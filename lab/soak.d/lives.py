# SPDX-License-Identifier: BSD-3-Clause
"""An image with a mixture of features, in many short lives of a server: changed before it
is served, written by 8 clients while others read its exports, and then killed, told to
end, or left by its clients."""

import os
import random
import signal
import subprocess
import time

from common import ServerFailure
from disk import Disk
from image import Image
from load import Load, Reader, marked, read_export
from mixture import SECRET, Maker
from model import SECTOR, Failure
from track import Track

CONNECTIONS = 8
LARGEST = 16 << 20
# What images of some kinds are refused: nothing has changed then.
REFUSALS = ("cannot mark new clusters as zeros", "cannot have more references",
            "the header has no space for the bitmaps extension")


class Lives(Track):
    name = "lives"

    def live(self):
        rng = self.rng
        maker = Maker(self.directory, self.config.features, rng)
        spec = maker.make()
        self.image = Image(self.directory, spec["layers"])
        self.parameters = spec["parameters"] + self.more_parameters()
        self.disk = Disk(self.read("model.raw"))
        self.snapshots = {n: self.read(n + ".raw") for n in spec["snapshots"]}
        # What the disk contained when a bitmap began, or None if that is not known.
        self.bitmaps = {n: None for n in spec["bitmaps"]}
        self.layers = {}            # contents of layers that do not change
        self.repair = False         # the next start must: version 2 has no mark
        rounds, begun = rng.randint(5, 9), self.requests.value
        for n in range(rounds):
            self.round = n
            self.one_round()
            if self.over():
                break
        self.last_judgement()
        top = spec["layers"][-1]
        return "%d lives, %d requests, %d below, %s; %s" % (
            self.round + 1, self.requests.value - begun, len(spec["layers"]) - 1,
            " ".join("%s=%s" % kv for kv in sorted(top["options"].items())),
            " ".join(p for p in self.parameters if not p.startswith("passphrase")))

    def read(self, name):
        with open(os.path.join(self.directory, name), "rb") as f:
            return f.read()

    def more_parameters(self):
        rng, p = self.rng, []
        p.append("checkpoint-interval=%d" % rng.choice((0, 1, 1, 5)))
        if len(self.image.layers) > 1 and rng.random() < 0.4:
            p.append("copy-on-read=true")
        if rng.random() < 0.3:
            p.append("stats=" + os.path.join(self.directory, "stats.json"))
        if rng.random() < 0.2:
            p.append("on-enospc=wait")
        return p

    def what(self, text):
        return "life %d: %s" % (self.round, text)

    # --- what is possible with this image

    @property
    def top(self):
        return self.image.layers[-1]

    def below(self):
        return len(self.image.layers) > 1 and self.image.has_backing()

    def most_snapshots(self):
        bits = self.top["options"].get("refcount_bits", 16)
        packed = self.top["compressed"] or "compress=on" in self.parameters
        if self.top.get("data_file") or bits < (16 if packed else 2):
            return 0
        return 2 if bits == 2 else 4

    def trim(self):
        if "discard=ignore" in self.parameters:
            return "keep"
        return "any" if self.image.version == 2 and self.below() else "zero"

    # --- edits: a parameter, and what the image is after it

    def choose_edit(self):
        """A parameter and a function, or None."""
        rng = self.rng
        name = rng.choice(("create", "create", "apply", "delete", "resize", "resize",
                           "bitmap-add", "bitmap-remove", "flatten"))
        if name == "create" and len(self.snapshots) < self.most_snapshots():
            new = "t%d" % rng.getrandbits(30)
            contents = bytes(self.disk.now)
            return ("snapshot-create=" + new,
                    lambda: self.snapshots.update({new: contents}))
        if name == "apply" and self.snapshots and not self.bitmaps:
            which = rng.choice(sorted(self.snapshots))
            old = self.snapshots[which]
            return "snapshot-apply=" + which, lambda: self.become(old)
        if name == "delete" and self.snapshots:
            which = rng.choice(sorted(self.snapshots))
            return "snapshot-delete=" + which, lambda: self.snapshots.pop(which)
        if name == "resize" and not (self.image.version == 2 and self.snapshots):
            largest = 2 << 20 if self.image.cluster < 4096 else LARGEST
            size = SECTOR * rng.randint(1, largest // SECTOR)
            if self.top.get("data_file"):
                size = max(size, len(self.disk.now))
            return "resize=%d" % size, lambda: self.resize(size)
        if name == "bitmap-add" and self.image.version == 3 and len(self.bitmaps) < 4:
            new = "b%d" % rng.getrandbits(30)
            return "bitmap-add=" + new, lambda: self.bitmaps.update(
                {new: bytes(self.disk.now)})
        if name == "bitmap-remove" and self.bitmaps:
            which = rng.choice(sorted(self.bitmaps))
            return "bitmap-remove=" + which, lambda: self.bitmaps.pop(which)
        if name == "flatten" and self.below() and not self.snapshots and \
                not self.top.get("data_file") and rng.random() < 0.5:
            return "flatten=true", self.layers.clear
        return None

    def become(self, contents):
        if len(contents) != len(self.disk.now):
            self.disk.resize(len(contents))
        self.disk.replace(contents)

    def resize(self, size):
        self.disk.resize(size)
        for name, old in self.bitmaps.items():
            if old is not None:
                self.bitmaps[name] = old[:size].ljust(size, b"\0")

    def edit_parameters(self, edit):
        p = ["shrink=true"] if edit.startswith("resize") else []
        return self.parameters + p + [edit]

    def edits(self):
        """Before serving, some changes.  Returns one for the start that serves, or None.
        """
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            edit = self.choose_edit()
            if edit is None:
                continue
            self.count(edit[0].partition("=")[0])
            how = self.rng.random()
            if how < 0.25:
                self.killed_edit(*edit)
            elif how < 0.6:
                self.run_edit(*edit)
            else:
                return edit
        return None

    def was_refused(self, said):
        if not any(r in said for r in REFUSALS):
            return False
        self.count("refused")
        return True

    def run_edit(self, parameter, after):
        # (Not with --run: then nothing waits for the server's end.)
        self.note(self.what(parameter))
        try:
            self.start("file=" + self.image.path, *self.starting(),
                       *self.edit_parameters(parameter)).stop()
            after()
        except ServerFailure as e:
            if not self.was_refused(str(e)):
                raise

    def start_with(self, edit):
        """A server that serves, after this change."""
        start = ["file=" + self.image.path, *self.starting()]
        self.note(self.what("served, " + (edit[0] if edit else "as it is")))
        if edit:
            try:
                server = self.start(*start, *self.edit_parameters(edit[0]))
                edit[1]()
                return server
            except ServerFailure as e:
                if not self.was_refused(str(e)):
                    raise
        return self.start(*start, *self.parameters)

    def killed_edit(self, parameter, after):
        """It has happened, or it has not."""
        before = self.looks()
        p = subprocess.Popen(
            [self.config.nbdkit, "-f", "--exit-with-parent",
             "-U", os.path.join(self.directory, "killed.sock"), self.config.plugin,
             "file=" + self.image.path, *self.starting(),
             *self.edit_parameters(parameter)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        time.sleep(self.rng.random() * 0.08)
        p.kill()
        p.wait()
        if os.path.exists(os.path.join(self.directory, "killed.sock")):
            os.unlink(os.path.join(self.directory, "killed.sock"))
        self.count("changes killed")
        self.note(self.what("killed in " + parameter))
        self.image.check(self.what("killed in " + parameter), leaks=True)
        found = self.image.contents()
        if self.looks() != before:
            after()
        elif parameter.startswith("snapshot-apply") and found != self.disk.now:
            after()
        if found != self.disk.now:
            raise Failure(self.what("killed in %s: neither done nor not done" %
                                    parameter))
        self.repair = self.repair or self.image.version == 2

    def looks(self):
        return (self.image.snapshots(), self.image.size(), self.image.has_backing(),
                self.image.bitmaps())

    def starting(self):
        """Parameters for the first start after a crash, and now and then for others."""
        if self.repair:
            self.repair = False
            self.count("check=repair")
            return ["check=repair"]
        if self.rng.random() < 0.2:
            self.count("check=full")
            return ["check=full"]
        return []

    # --- a life

    def exports(self, server):
        """What is read while others write."""
        found = list(self.snapshots.items()) + [("layer:0", None)]
        found += [("bitmap:" + n, None) for n, old in self.bitmaps.items()
                  if old is not None]
        for i in range(1, len(self.image.layers) if self.below() else 0):
            name = "layer:%d" % i
            if i not in self.layers:
                self.layers[i] = read_export(server.uri(name))
            found.append((name, self.layers[i]))
        return found

    def one_round(self):
        rng = self.rng
        server = self.start_with(self.edits())
        self.watch(server, self.image.files())
        load = Load(server.uri(), CONNECTIONS, rng, self.disk, self.image.cluster,
                    self.trim(), self.requests)
        reader = Reader(server, self.exports(server), random.Random(rng.random()),
                        self.counts)
        reader.start()
        ending = rng.choice(("kill", "kill", "term", "clean", "clean"))
        count = rng.randint(100, 1500)

        def end():
            load.ending.set()
            server.signal(signal.SIGKILL if ending == "kill" else signal.SIGTERM)

        load.run(count, [] if ending == "clean" else [(rng.randint(1, count), end)])
        self.count("ended: " + ending)
        try:
            if ending == "clean":
                reader.finish()
                self.leave(server, load)
                return
            load.close()
            if ending == "kill":
                server.kill()
            elif not server.stop(meanwhile=reader.hang_up):
                self.count("aborts of nbdkit")
                ending = "kill"
            reader.finish(ending=True)
        finally:
            server.kill()
        self.judge(ending == "kill")

    def leave(self, server, load):
        """The clients go one after the other, and the server ends, or has to."""
        if self.rng.random() < 0.5:
            load.flush()
        self.judge_bitmaps(server)
        load.close()
        if self.rng.random() < 0.15:
            # Nobody flushes, but the last client that goes.
            self.count("killed when idle")
            time.sleep(0.3 * self.rng.random())
            server.kill()
            self.judge(crash=True)
        elif not server.stop():
            self.count("aborts of nbdkit")
            self.judge(crash=True)
        else:
            self.judge(crash=False)

    def unmarked_change(self, server, name, old):
        """Where something has changed that the bitmap does not show, or None."""
        now, at = self.disk.now, 0
        for start, end in marked(server.uri("bitmap:" + name)) + [(len(now), len(now))]:
            if old[at:start] != now[at:start]:
                return at, start
            at = end
        return None

    def judge_bitmaps(self, server):
        for name, old in self.bitmaps.items():
            if old is None:
                continue
            # The reader's connection may not have ended yet: until then its copy of the
            # bits is shown.
            enough = time.monotonic() + 10
            while (missed := self.unmarked_change(server, name, old)) is not None:
                if time.monotonic() > enough:
                    raise Failure(self.what("bitmap %s does not know of a change between "
                                            "%d and %d" % (name, *missed)))
                time.sleep(0.05)
            self.count("bitmaps judged")

    def judge(self, crash):
        what = self.what("after a crash" if crash else "after a clean end")
        self.note(what)
        self.image.check(what, leaks=crash)
        found = self.image.contents()
        if crash:
            self.disk.settle_crash(what, found)
            # They are inconsistent, unless nothing was written.
            self.bitmaps = {n: None for n in self.bitmaps}
            self.repair = self.image.version == 2
        else:
            self.disk.settle_clean(what, found)
        self.count("images judged")
        if self.snapshots:
            self.judge_snapshot(self.rng.choice(sorted(self.snapshots)))

    def judge_snapshot(self, name):
        if not self.image.has_snapshot(name, self.snapshots[name]):
            raise Failure(self.what("snapshot %s has changed" % name))
        self.count("snapshots judged")

    def last_judgement(self):
        self.last_writer("server", "file=" + self.image.path, *self.starting(),
                         *self.parameters)
        self.judge(crash=False)
        for name in self.snapshots:
            self.judge_snapshot(name)
        if sorted(self.snapshots) != sorted(self.image.snapshots()):
            raise Failure("QEMU finds other snapshots")
