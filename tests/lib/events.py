# SPDX-License-Identifier: BSD-3-Clause
#
# The log of events (log=), in JSON.
#
#   lines = read(PATH)              each an object; fails unless all is as it must be
#   find(lines, event=..., ...)     the only one with these members

import json
import re

LEVELS = "error", "warning", "info"


def once(pairs):
    assert len({key for key, value in pairs}) == len(pairs), pairs
    return dict(pairs)


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    assert data.endswith(b"\n"), data[-100:]
    lines = [json.loads(line, object_pairs_hook=once) for line in data[:-1].split(b"\n")]
    for line in lines:
        assert list(line)[:4] == ["time", "level", "event", "image"], line
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), line
        assert line["level"] in LEVELS, line
    assert sorted(line["time"] for line in lines) == [line["time"] for line in lines]
    return lines


def find(lines, **members):
    found = [line for line in lines if members.items() <= line.items()]
    assert len(found) == 1, (members, found)
    return found[0]
