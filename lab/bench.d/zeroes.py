# SPDX-License-Identifier: BSD-3-Clause
"""Writes zeroes to a disk, at random places, which fio's nbd engine can't.

Without --rate: each place once, as fast as it goes; prints requests per second.
With --rate: so many per second, one after the other, for --seconds.
"""

import argparse
import random
import sys
import time

import nbd


def flat_out(h, places, request, depth):
    failed = []

    def done(error):
        if error.value:
            failed.append(error.value)
        return 1

    start = time.monotonic()
    for offset in places:
        while h.aio_in_flight() >= depth:
            h.poll(-1)
        h.aio_zero(request, offset, completion=done)
    while h.aio_in_flight():
        h.poll(-1)
    if failed:
        sys.exit("zeroes: error %d" % failed[0])
    print(len(places) / (time.monotonic() - start))


def at_rate(h, places, request, rate, seconds):
    start = time.monotonic()
    n = 0
    while True:
        due = start + n / rate
        now = time.monotonic()
        if now - start >= seconds:
            return
        if now < due:
            time.sleep(due - now)
        h.zero(request, places[n % len(places)])
        n += 1


def main():
    p = argparse.ArgumentParser()
    p.add_argument("uri")
    p.add_argument("--request", type=int, required=True)
    p.add_argument("--depth", type=int, default=1)
    p.add_argument("--rate", type=float)
    p.add_argument("--seconds", type=float)
    a = p.parse_args()

    h = nbd.NBD()
    h.connect_uri(a.uri)
    places = list(range(0, h.get_size() - a.request + 1, a.request))
    random.Random(1).shuffle(places)
    if a.rate:
        at_rate(h, places, a.request, a.rate, a.seconds)
    else:
        flat_out(h, places, a.request, a.depth)
    h.shutdown()


main()
