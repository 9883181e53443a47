# SPDX-License-Identifier: BSD-3-Clause
"""JSON, without Python's module for it, which takes longer to load than the plugin takes
to describe an image.  Its scanner, which is written in C, needs nothing else; where there
is none, or it does not like the text, the module itself reads it."""

BLOCK = 256 << 10               # characters


class _Plain:
    """What the scanner asks for: the types of Python."""
    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float
    memo = {}


def _scanner():
    try:
        from _json import make_scanner
        return make_scanner(_Plain)
    except (ImportError, AttributeError, TypeError):
        return None


_scan = _scanner()


def loads(text):
    text = text.strip()
    if _scan:
        try:
            value, end = _scan(text, 0)
            if end == len(text):
                return value
        except (StopIteration, ValueError):
            pass
    import json
    return json.loads(text)


def lines(file):
    """The objects of an array of which the plugin has written one in each line, some at a
    time."""
    while some := file.readlines(BLOCK):
        yield from loads("[" + "".join(some).strip().lstrip("[").rstrip(",]") + "]")


def of_line(line):
    return loads(line.strip().lstrip("[").rstrip(",]"))


def string(text):
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        import json
        return json.dumps(text)
    return encode_basestring_ascii(text)


def dumps(value, indent=None, before=""):
    """As json.dumps; there are no numbers but integers."""
    if isinstance(value, str):
        return string(value)
    if value is None or isinstance(value, bool):
        return {None: "null", False: "false", True: "true"}[value]
    if not isinstance(value, (dict, list)):
        return str(value)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    inside = before + " " * (indent or 0)
    if isinstance(value, dict):
        items = [string(k) + ": " + dumps(v, indent, inside) for k, v in value.items()]
    else:
        items = [dumps(v, indent, inside) for v in value]
    if not items:
        return begin + end
    if indent is None:
        return begin + ", ".join(items) + end
    return "%s\n%s%s\n%s%s" % (begin, inside, (",\n" + inside).join(items), before, end)
