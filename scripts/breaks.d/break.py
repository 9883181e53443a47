# SPDX-License-Identifier: BSD-3-Clause
"""break.py TREE BREAK...: prints a patch for each, which makes it in the sources of TREE.

A break (tests/regressions/broken/*.break) goes by function, so that the sources can be
changed around it.  Its first paragraph says what it does, each other one is an edit:

    NAME            a function or a struct, in any source of the core, plugin or img
    -OLD            some of its text, in one or more lines
    +NEW            what to write there instead, in any number of lines

The sources must contain OLD once in what NAME names.  Space, comments, and where a string
is split do not matter.
"""

import difflib
import glob
import os
import re
import sys

STRING = r'"(?:\\.|[^"\\])*"'
TOKEN = re.compile(r"/\*.*?\*/|//[^\n]*|(%s(?:\s*%s)*|'(?:\\.|[^'\\])*'|\w+|\S)"
                   % (STRING, STRING), re.S)


def tokens(text):
    """(token, start, end) of each."""
    return [(re.sub(r'"\s*"', "", m[1]), *m.span()) for m in TOKEN.finditer(text) if m[1]]


def definitions(name, text):
    """(start, end) of each function (with the type that it returns) or struct NAME."""
    head = name + r" \{" if name.startswith("struct ") else name + r" \([^;{}]*?\)\n\{"
    for m in re.finditer("^" + head + r".*?^\}", text, re.M | re.S):
        yield text.rfind("\n\n", 0, m.start()) + 2, m.end()


def places(name, old, sources):
    """(path, start, end) of each occurrence of OLD in what NAME names."""
    old = [t for t, _, _ in tokens(old)]
    for path, text in sources.items():
        for start, end in definitions(name, text):
            found = tokens(text[start:end])
            for i in range(len(found) - len(old) + 1):
                if [t for t, _, _ in found[i:i + len(old)]] == old:
                    yield path, start + found[i][1], start + found[i + len(old) - 1][2]


def edits(path):
    """(name, old, new) of each."""
    with open(path, encoding="utf-8") as f:
        for paragraph in f.read().strip("\n").split("\n\n")[1:]:
            m = re.fullmatch(r"(\w.*)((?:\n-.*)+)((?:\n\+.*)*)", paragraph)
            if not m:
                raise SystemExit("%s: not a name, old lines, new lines:\n%s"
                                 % (path, paragraph))
            yield m[1], m[2].replace("\n-", "\n"), m[3].replace("\n+", "\n").lstrip()


def patch(path, sources):
    """What makes the break of PATH in SOURCES."""
    broken = dict(sources)
    for name, old, new in edits(path):
        found = list(places(name, old, broken))
        if len(found) != 1:
            raise SystemExit("%s: %d places, not 1, in %s for%s"
                             % (path, len(found), name, old))
        source, start, end = found[0]
        broken[source] = broken[source][:start] + new + broken[source][end:]
    for source, text in sources.items():
        if text != broken[source]:
            yield from difflib.unified_diff(
                text.splitlines(True), broken[source].splitlines(True),
                "a/" + source, "b/" + source)


def main(tree, *paths):
    sources = {}
    for source in sorted(p for pattern in ("core/*/*.[ch]", "plugin/*.[ch]", "img/*.[ch]")
                         for p in glob.glob(pattern, root_dir=tree)):
        with open(os.path.join(tree, source), encoding="utf-8") as f:
            sources[source] = f.read()
    for path in paths:
        sys.stdout.writelines(patch(path, sources))


main(*sys.argv[1:])
