#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Clients of the control socket do not disturb each other, nor the server: garbage is
# answered, and the connection lives on; one that reads nothing, vanishes in the middle
# of a command or pipelines many gets no others into trouble; the 17th is turned away.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

make_image "$tmp/a.qcow2" 8M
start_nbdkit control="$sockdir/qmp" "$tmp/a.qcow2"

PYTHONPATH="$srcdir/lib" "$python" - "$sockdir/qmp" "$uri" <<'PY'
import json
import random
import sys
import nbd
from qmp import Client

path = sys.argv[1]
h = nbd.NBD()
h.connect_uri(sys.argv[2])
judge = Client(path)

def lives():
    assert judge.get("query-jobs") == []
    h.pwrite(b"x" * 512, 0)

# Garbage of all kinds; whatever it was, a control character and a line end it.
seed = random.randrange(1 << 32)
print("SEED=%d" % seed)
random.seed(seed)
pieces = ["{", "}", "[", "]", ",", ":", "\"", "'", "\\", "\n", " ", "execute", "id", "1",
          "-", "1e999", "9" * 400, "true", "nul", "\x01", "\x7f", "é", "\\u0000",
          "\\ud800", "{\"execute\": ", "\"query-jobs\"", "\"arguments\": {", "[" * 1500,
          "{\"a\":" * 1100, "x" * 70000]
for _ in range(200):
    c = Client(path)
    c.say("".join(random.choice(pieces) for _ in range(random.randrange(1, 12))))
    c.say("\x01\n")
    c.say('{"execute": "query-jobs", "id": "end"}')
    while c.answer().get("id") != "end":
        pass
    c.close()
lives()

# All of a command byte by byte, and many commands at once.
c = Client(path)
for byte in b'{"execute":"query-jobs","id":7}':
    c.say(bytes([byte]))
assert c.answer()["id"] == 7
c.say("".join('{"execute":"query-block-exports","id":%d}' % i for i in range(2000)))
assert [c.answer()["id"] for _ in range(2000)] == list(range(2000))

# The end of what a client says is not the end of what it wants to hear.
import socket
c.say('{"execute":"query-jobs","id":1}{"execute":"query-jobs","id":2}')
c.socket.shutdown(socket.SHUT_WR)
assert [c.answer()["id"], c.answer()["id"], c.answer()] == [1, 2, None]

# Half a command.
for _ in range(50):
    c = Client(path)
    c.say('{"execute":"query-named-block-nodes","id":"')
    c.close()
# A whole one, whose answer nobody wants.
for _ in range(50):
    c = Client(path)
    c.say('{"execute":"query-named-block-nodes"}')
    c.close()
lives()

# Clients that read nothing.
c = Client(path)
c.socket.setblocking(False)
try:
    for _ in range(100000):
        c.socket.send(b'{"execute":"query-named-block-nodes"}\n' * 10)
    raise SystemExit("the server takes what it cannot answer")
except BlockingIOError:
    pass
lives()

# Sixteen, and one more.
c.close()
others = [judge] + [Client(path) for _ in range(15)]
extra = socket.socket(socket.AF_UNIX)
extra.connect(path)
assert extra.recv(1) == b""
others.pop().close()
while True:
    try:
        others.append(Client(path))
        break
    except (AssertionError, ConnectionError):
        pass                    # the server has not noticed yet
for c in others:
    assert c.get("query-jobs") == []
lives()
PY
stop_nbdkit
