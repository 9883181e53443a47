# SPDX-License-Identifier: BSD-3-Clause
"""Which part of the name of a file may be told?  The same as core/util/publicname.c,
which says why."""

import json
import re

HARMLESS = frozenset("""driver type host port export node-name pool image namespace
    snapshot file backing data-file offset size to aio discard detect-zeroes locking
    force-share reconnect-delay open-timeout filename path url uri""".split())
PROTOCOL = re.compile(r"([^:/]*):", re.DOTALL)
WORD = re.compile(r"[A-Za-z0-9+._-]*")
KEY = re.compile(r"[A-Za-z0-9._-]*")
SERVER = re.compile(r"(\[[0-9a-fA-F:.\[\]]*\]|[A-Za-z0-9._-]*)(:[0-9]*)?")
ADDRESS = re.compile(r"[0-9a-fA-F:.\[\]]*")
PARAMETERS = re.compile(r"[?#;&=]")
RBD = re.compile(r"rbd:[A-Za-z0-9_./-]*")


def is_uri(name):
    """PROTOCOL://...  Where only files can be named, messages would show all of it."""
    m = PROTOCOL.match(name)
    return m is not None and name.startswith("//", m.end())


def shown(name, inner=False):
    """NAME for a message or a report: "..." replaces what may be a secret."""
    m = PROTOCOL.match(name)
    if not m:
        return name
    protocol, start = m.group(1), m.end()
    if not inner and protocol == "json":
        return shown_json(name, start)
    if not WORD.fullmatch(protocol):
        return "..."
    if name.startswith("//", start) and protocol != "file":
        return shown_uri(name, start + 2)
    if protocol == "file" and "://" not in name[start:] or \
            protocol == "nbd" and is_old_nbd(name[start:]):
        return name
    if protocol == "rbd":
        end = RBD.match(name).end()
        return name if end == len(name) else name[:end + (name[end] in ":@")] + "..."
    return name[:start] + "..."


def shown_uri(name, start):
    rest = name[start:]
    m = PARAMETERS.search(rest)
    parameters = m.start() if m else len(rest)
    at = rest.rfind("@")
    server = rest[at + 1:]
    if at > parameters or not SERVER.fullmatch(re.split(r"[/?#;&=]", server)[0]):
        return name[:start] + "..."
    query = rest[parameters:]
    if query and not (query.startswith("?socket=") and not PARAMETERS.search(query[8:])):
        server = rest[at + 1:parameters + 1] + "..."
    return name[:start] + ("...@" if at >= 0 else "") + server


def is_old_nbd(rest):
    on_socket = rest.startswith("unix:")
    server = rest[5 if on_socket else 0:].partition(":exportname=")[0]
    return "@" not in rest and (":" not in server if on_socket
                                else SERVER.fullmatch(server) is not None)


# --- JSON

def members(pairs):
    found = dict(pairs)
    if len(found) != len(pairs) or not all(KEY.fullmatch(key) for key in found):
        raise ValueError
    return found


def shown_json(name, start):
    try:
        found = json.loads(name[start:], object_pairs_hook=members)
        hidden = {key: without_secrets(key, x) for key, x in found.items()}
    except (AttributeError, RecursionError, ValueError):
        return name[:start] + "..."
    return name if hidden == found else name[:start] + json.dumps(hidden, ensure_ascii=False)


def without_secrets(key, value):
    option = key.rpartition(".")[2]
    if isinstance(value, dict):
        return {k: without_secrets(k, x) for k, x in value.items()}
    if value is None or isinstance(value, bool):
        return value
    if option not in HARMLESS or isinstance(value, list):
        return "..."
    if not isinstance(value, str):
        return value
    if option in ("filename", "path") or "://" in value:
        return shown(value, True)
    return "..." if "@" in value or PARAMETERS.search(value) or \
        ":" in value and not ADDRESS.fullmatch(value) else value
