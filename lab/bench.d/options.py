# SPDX-License-Identifier: BSD-3-Clause
"""Values of options that lab/bench and lab/pictures share, for argparse."""

import argparse

import servers
from images import GiB, MiB


def parse_size(text):
    factor = {"K": 1024, "M": MiB, "G": GiB}.get(text[-1:].upper())
    size = int(text[:-1]) * factor if factor else int(text)
    if size < 4 * MiB or size % MiB:
        raise argparse.ArgumentTypeError("%s: whole MiB, 4M at least" % text)
    return size


def parse_servers(text):
    kinds = text.split(",")
    if not set(kinds) <= set(servers.KINDS):
        raise argparse.ArgumentTypeError("%s: servers are %s"
                                         % (text, ", ".join(servers.KINDS)))
    return [k for k in servers.KINDS if k in kinds]


def positive(kind):
    def parse(text):
        n = kind(text)
        if not 0 < n < 1e6:
            raise ValueError(text)
        return n
    return parse
