# SPDX-License-Identifier: BSD-3-Clause
"""What all tracks share.  A track is a process that does the same kind of thing again and
again, each time with a new image: a generation.  The seed, the name of the track and the
number of the generation determine what it chooses."""

import json
import os
import random
import shutil
import time

import nbd

from common import ServerFailure
from model import Failure
from servers import Server


def explain(e):
    known = isinstance(e, (Failure, ServerFailure, SystemExit))
    return str(e) if known else "%s: %s" % (type(e).__name__, e)


class Track:
    name = None

    def __init__(self, config, requests):
        self.config = config
        self.requests = requests            # a counter that the sampler reads
        self.home = os.path.join(config.work, self.name)
        self.counts = {}

    # --- what a generation uses

    def count(self, what, n=1):
        self.counts[what] = self.counts.get(what, 0) + n

    def note(self, text):
        """For whoever looks at the files of a failure."""
        with open(os.path.join(self.directory, "history"), "a", encoding="utf-8") as f:
            f.write(text + "\n")

    def over(self):
        return self.config.over.is_set() or time.monotonic() >= self.config.deadline

    def serve(self, name, *args):
        return Server(self.config.nbdkit, self.directory, name, *args)

    def start(self, *args):
        """Our server."""
        return self.serve("server", self.config.plugin, *args)

    def last_writer(self, name, *parameters):
        """The next start with a writer, and a clean end: after it nothing is leaked."""
        server = self.serve(name, self.config.plugin, *parameters)
        try:
            h = nbd.NBD()
            h.connect_uri(server.uri())
            h.shutdown()
            server.stop()
        finally:
            server.kill()

    def watch(self, server, files):
        """The sampler looks at this process and these files from now on."""
        path = os.path.join(self.home, "now.json")
        with open(path + ".new", "w", encoding="utf-8") as f:
            json.dump({"pid": server.pid, "files": files,
                       "generation": self.generation}, f)
        os.rename(path + ".new", path)

    # --- generations

    def go(self, say):
        """Generations until the time is over, or the same one until then."""
        os.makedirs(self.home)
        only, n = self.config.only.get(self.name), 0
        while n == 0 or not self.over():
            self.generation = only if only is not None else n
            self.directory = os.path.join(self.home, "image")
            os.mkdir(self.directory)
            self.rng = random.Random("%d:%s:%d" % (self.config.seed, self.name,
                                                   self.generation))
            try:
                line = self.live()
            except (Exception, SystemExit) as e:
                raise Failure("%s:%d: %s" % (self.name, self.generation,
                                             explain(e))) from e
            self.count("generations")
            say("%s:%d: %s" % (self.name, self.generation, line))
            shutil.rmtree(self.directory)
            n += 1

    def live(self):
        """One generation; returns a line about it."""
        raise NotImplementedError
