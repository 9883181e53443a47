# SPDX-License-Identifier: BSD-3-Clause
"""How many round trips does a client of an NBD server wait for?

  roundtrips.py SOCKET FAR-SOCKET COUNT-SOCKET

Connects the clients of SOCKET with the server at FAR-SOCKET.  What clients send goes on at
once; answers are kept back until nothing has moved for a moment, and then all are let
through.  So requests that are sent without waiting for an answer share a round trip,
also on different connections, and time does not matter.

Whoever connects to COUNT-SOCKET gets two numbers: the round trips, and the connections,
since the last one who did.  From then on, a moment is as many seconds as the file
COUNT-SOCKET.quiet says, if it exists.
"""

import os
import selectors
import socket
import sys

QUIET = 0.04                    # seconds

def listen(path):
    s = socket.socket(socket.AF_UNIX)
    s.bind(path + ".new")
    s.listen(4096)
    os.rename(path + ".new", path)
    return s

class Half:
    """What goes one way."""
    def __init__(self, source, sink, held):
        self.source, self.sink, self.held = source, sink, held
        self.data = b""

class Proxy:
    def __init__(self, here, far, count):
        self.far = far
        self.quiet, self.quiet_file = QUIET, count + ".quiet"
        self.trips = self.connections = 0
        self.held = {}          # answers
        self.loop = selectors.DefaultSelector()
        self.loop.register(listen(here), selectors.EVENT_READ, self.connect)
        self.loop.register(listen(count), selectors.EVENT_READ, self.tell)

    def connect(self, listener):
        client = listener.accept()[0]
        server = socket.socket(socket.AF_UNIX)
        server.connect(self.far)
        self.connections += 1
        for source, sink, held in ((client, server, False), (server, client, True)):
            half = Half(source, sink, held)
            self.loop.register(source, selectors.EVENT_READ,
                               lambda _, half=half: self.move(half))

    def tell(self, listener):
        with listener.accept()[0] as s:
            s.sendall(b"%d %d\n" % (self.trips, self.connections))
        self.trips = self.connections = 0
        if os.path.exists(self.quiet_file):
            with open(self.quiet_file) as f:
                self.quiet = float(f.read())

    def move(self, half):
        try:
            data = half.source.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.loop.unregister(half.source)
            if half.held and half.data:
                self.release(half)
            try:
                half.sink.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        elif half.held:
            half.data += data
            self.held[half] = True
        else:
            try:
                half.sink.sendall(data)
            except OSError:
                pass

    def release(self, half):
        self.held.pop(half, None)
        data, half.data = half.data, b""
        try:
            half.sink.sendall(data)
        except OSError:
            pass

    def run(self):
        while True:
            events = self.loop.select(self.quiet if self.held else None)
            for key, _ in events:
                key.data(key.fileobj)
            if not events:
                self.trips += 1
                for half in list(self.held):
                    self.release(half)

Proxy(*sys.argv[1:]).run()
