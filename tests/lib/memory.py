# SPDX-License-Identifier: BSD-3-Clause
#
# Functions that the tests of memory share: many requests in flight, and the server's
# memory.

import nbd
import os
import random


def rss(pid):
    """The memory that the process uses now, and the most that it ever used, in MiB."""
    values = {}
    with open("/proc/%d/status" % pid) as f:
        for line in f:
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                values[name] = int(value.split()[0]) / 1024
    return values["VmRSS"], values["VmHWM"]


def connect(sock, name=""):
    h = nbd.NBD()
    h.set_export_name(name)
    h.connect_unix(sock)
    return h


def pump(handles, requests, depth=16):
    """Each request is a function of a handle and a completion callback; DEPTH of them are in
    flight on each handle."""
    requests = iter(requests)
    live = [0] * len(handles)
    more = True

    def completion(i):
        def done(error):
            assert error.value == 0, os.strerror(error.value)
            live[i] -= 1
            return 1
        return done

    while more or any(live):
        for i, h in enumerate(handles):
            while more and live[i] < depth:
                request = next(requests, None)
                if request is None:
                    more = False
                else:
                    live[i] += 1
                    request(h, completion(i))
            if live[i]:
                h.poll(1)


def writes(offsets, size):
    data = nbd.Buffer.from_bytearray(bytearray(b"w" * size))
    for at in offsets:
        yield lambda h, done, at=at: h.aio_pwrite(data, at, completion=done)


def trims(offsets, size):
    for at in offsets:
        yield lambda h, done, at=at: h.aio_trim(size, at, completion=done)


def seeded():
    seed = int(os.environ.get("SEED") or random.SystemRandom().getrandbits(32))
    print("SEED=%d" % seed)
    return random.Random(seed)
