# SPDX-License-Identifier: BSD-3-Clause
"""How files of other formats begin.  The list is that of the plugin, formatmarks.h: it is
installed beside this file, and in the source tree a part of the core."""

import os


def load():
    """(offset, mark, name of the format, the cure) of each line of the list."""
    with open(path(), encoding="ascii") as f:
        return [parse(line) for line in f if line.startswith("MARK (")]


def path():
    here = os.path.dirname(os.path.realpath(__file__))
    name = os.path.join(here, "formatmarks.h")
    return name if os.path.exists(name) else \
        os.path.join(os.path.dirname(here), "core/format/formatmarks.h")


def parse(line):
    """Strings are as in C: after a space alone, one goes on.  The cure is a macro."""
    words = line.rstrip(" )\n").split('"')
    strings = []
    for between, text in zip(words[0::2], words[1::2]):
        if between == " ":
            strings[-1] += text
        else:
            strings.append(text)
    mark, name, _ = strings
    return (int(words[0].strip("MARK (,")), in_bytes(mark), name, words[-1].strip())


def in_bytes(text):
    """With C's escapes."""
    return text.encode().decode("unicode_escape").encode("latin-1")
