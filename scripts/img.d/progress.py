# SPDX-License-Identifier: BSD-3-Clause
"""How far a command is: with -p in lines as qemu-img prints them; otherwise on a terminal,
in one line, which is there as long as a command takes longer than a second."""

import os
import sys
import time

import programs

SHOW_AFTER, SHOW_EVERY = 1, 0.25        # seconds


class Progress:
    """From 0 to 1, of the command NAME with the options O; it never goes back.  DATA: what
    the command prints is data."""

    def __init__(self, name, o, data=False):
        quiet = getattr(o, "quiet", False)
        self.name = name
        self.prints = getattr(o, "progress", False) and not quiet and not data
        self.draws = not self.prints and not quiet and os.isatty(2)
        self.wanted = self.prints or self.draws
        self.counts_create = name == "create"
        self.begun = time.monotonic()
        self.drawn = self.at = 0
        self.within(0, 1)

    def within(self, begin, end):
        """What follows is this part of the command."""
        self.begin, self.length = begin, end - begin

    def show(self, part):
        self.at = max(self.at, self.begin + part * self.length)
        now = time.monotonic()
        if self.prints:
            print("    (%.2f/100%%)\r" % (self.at * 100), end="", flush=True)
        elif self.draws and now - self.begun > SHOW_AFTER and \
                now - self.drawn > SHOW_EVERY:
            self.drawn = now
            programs.draw("%s: %3d %%" % (self.name, self.at * 100))

    def count(self, done, total):
        """The same, for a loop of many steps."""
        if done * 100 // total != (done - 1) * 100 // total:
            self.show(done / total)

    def __enter__(self):
        self.show(0)
        return self

    def __exit__(self, kind, _error, _trace):
        if kind is None:
            self.within(0, 1)
            self.show(1)
        self.end()

    def end(self):
        if self.prints:
            print()
        programs.draw("")

    def follow(self, fd, begin=0, end=1):
        """Shows what a program writes there, N/100 in each line, as this part.  A new
        image is not yet what is to be in it, unless COUNTS_CREATE says so."""
        with open(fd, encoding="ascii", errors="replace") as f:
            for line in f:
                phase, _, done = line.partition("/")[0].rpartition(" ")
                if done.isdigit() and (phase != "create" or self.counts_create):
                    self.show(begin + (end - begin) * int(done) / 100)
