# SPDX-License-Identifier: BSD-3-Clause
"""Which images does a policy accept?

A finding is a pair of a code, which is stable, and a text.
"""

import hashlib
import re

import formats
import header
from publicname import shown

ALLOW, REFUSE = "allow", "refuse"

# What a policy decides, with what `upload' and `strict' say.
CHOICES = {
    "backing-file": (REFUSE, REFUSE),
    "data-file": (REFUSE, REFUSE),
    "external-name": (REFUSE, REFUSE),
    "other-format": (REFUSE, REFUSE),
    "encrypted": (ALLOW, REFUSE),
    "snapshots": (ALLOW, REFUSE),
    "bitmaps": (ALLOW, REFUSE),
    "dirty": (ALLOW, REFUSE),
    "marked-corrupt": (ALLOW, REFUSE),
    "extended-l2": (ALLOW, REFUSE),
    "zstd": (ALLOW, REFUSE),
    "unknown-extension": (ALLOW, REFUSE),
    "unused-bytes": (ALLOW, REFUSE),
}
NUMBERS = ("max-virtual-size", "max-file-size", "max-ratio")
# The max-file-size of built-in policies: a stream that is longer than so much for the disk
# and each snapshot has no end.
FROM_HEADER = "from-header"
SPARE_BYTES, SPARE_TIMES = 4 << 30, 16
# All policies refuse these.
ALWAYS = ("format", "version", "header", "sizes", "truncated", "unknown-feature",
          "unsupported", "too-slow")
BUILT_IN = ("upload", "strict")
MAX_POLICY_FILE = 64 << 10


class Policy:
    """rules: {key: ALLOW, REFUSE, a number, None for no limit, or FROM_HEADER}."""

    def __init__(self, name):
        self.name = name
        if name in BUILT_IN:
            self.rules = self.built_in(name)
        else:
            with open(name, encoding="utf-8") as f:
                self.rules = self.read(f.read(MAX_POLICY_FILE))

    @staticmethod
    def built_in(name):
        rules = {key: x[BUILT_IN.index(name)] for key, x in CHOICES.items()}
        return {**rules, **dict.fromkeys(NUMBERS), "max-file-size": FROM_HEADER}

    def read(self, text):
        """Lines KEY = VALUE.  `base', which must be the first one, says what all others
        are."""
        rules = self.built_in("upload")
        seen = set()
        for n, line in enumerate(text.split("\n"), 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            m = re.fullmatch(r"([a-z0-9-]+)\s*=\s*(\S+)", line)
            try:
                if not m or m.group(1) in seen:
                    raise ValueError("not KEY = VALUE, or a key again")
                key, value = m.groups()
                if key == "base":
                    if seen or value not in BUILT_IN:
                        raise ValueError("base must be upload or strict, and come first")
                    rules = self.built_in(value)
                else:
                    rules[key] = self.value(key, value)
                seen.add(key)
            except ValueError as e:
                raise ValueError("line %d: %s" % (n, e))
        return rules

    @staticmethod
    def value(key, value):
        if key in CHOICES:
            if value not in (ALLOW, REFUSE):
                raise ValueError("%s must be allow or refuse" % key)
            return value
        if key not in NUMBERS:
            raise ValueError("unknown key: %s" % key)
        if value == "none":
            return None
        m = re.fullmatch(r"([0-9]{1,18})([KMGTPE]?)", value)
        if not m or (m.group(2) and key == "max-ratio"):
            raise ValueError("%s must be a number%s, or none" % (
                key, "" if key == "max-ratio" else ", with K, M, G, T, P or E behind it"))
        return int(m.group(1)) << 10 * " KMGTPE".index(m.group(2) or " ")

    def digest(self):
        rules = repr(sorted(self.rules.items()))
        return hashlib.sha256(rules.encode()).hexdigest()

    # --- what the first cluster decides

    def judge_header(self, h):
        """The findings about this header."""
        return h.faults + [f for f in self.properties(h)
                           if self.rules[f[0]] == REFUSE] + self.virtual_size(h)

    @staticmethod
    def properties(h):
        """All properties that a policy may refuse."""
        if h.backing_offset:
            yield "backing-file", "it has a backing file" + (
                " (\"%s\")" % shown(h.backing) if h.backing else "")
        if h.incompatible & header.DATA_FILE:
            yield "data-file", "it has an external data file" + (
                " (\"%s\")" % shown(h.data_name) if h.data_name else "")
        elif h.data_name:
            yield "external-name", "it names an external data file that it does not have " \
                "(\"%s\")" % shown(h.data_name)
        if h.backing_format and not h.backing:
            yield "external-name", "it names the format of a backing file that it does " \
                "not have (\"%s\")" % h.backing_format
        for name in h.formats:
            yield "other-format", "it is also a file of another format: " + name
        if h.crypt:
            yield "encrypted", "it is encrypted (%s)" % ("AES", "LUKS")[h.crypt - 1] \
                if h.crypt <= 2 else "it is encrypted"
        if h.snapshots:
            yield "snapshots", "it has %d internal snapshots" % h.snapshots
        if h.bitmaps:
            yield "bitmaps", "it has %d persistent bitmaps" % h.bitmaps
        if h.incompatible & header.DIRTY:
            yield "dirty", "it was not closed properly"
        if h.incompatible & header.CORRUPT:
            yield "marked-corrupt", "it is marked corrupt"
        if h.incompatible & header.EXTENDED_L2:
            yield "extended-l2", "it has extended L2 entries"
        if h.compression == 1:
            yield "zstd", "it is compressed with zstd"
        if h.unknown_extensions:
            yield "unknown-extension", "it has unknown header extensions: " + ", ".join(
                "0x%08x" % x for x in h.unknown_extensions)
        if h.compatible & ~header.KNOWN_COMPATIBLE or \
                h.autoclear & ~header.KNOWN_AUTOCLEAR:
            yield "unknown-extension", "it has unknown compatible or autoclear features"
        if h.unused is not None:
            yield "unused-bytes", "bytes of the first cluster that nothing uses are not " \
                "zeros, from %d on" % h.unused

    def virtual_size(self, h):
        limit = self.rules["max-virtual-size"]
        if limit is None or h.size <= limit:
            return []
        return [("virtual-size", "the disk has %d bytes, more than %d" % (h.size, limit))]

    # --- what the end of the file decides

    def judge_end(self, tail):
        """The findings about a file that ends with these bytes (formats.END of them)."""
        if self.rules["other-format"] == ALLOW:
            return []
        return [("other-format", "it is also a file of another format: " + name)
                for name in formats.at_end(tail)]

    # --- what its length decides

    def judge_length(self, h, length, complete=True):
        """The findings about a file of LENGTH bytes; not COMPLETE: more may come."""
        found = []
        limit, ratio = self.rules["max-file-size"], self.rules["max-ratio"]
        if limit == FROM_HEADER:
            limit = None if complete else \
                (SPARE_BYTES + SPARE_TIMES * h.size) * (1 + h.snapshots)
        if limit is not None and length > limit:
            found.append(("file-size", "the file has more than %d bytes" % limit
                          if not complete else
                          "the file has %d bytes, more than %d" % (length, limit)))
        if not complete or h.faults:
            return found
        for what, offset, n in h.places:
            if offset + n > length:
                found.append(("truncated", "the %s, %d bytes at %d, lies beyond the end of "
                              "the file, which has %d bytes" % (what, n, offset, length)))
        if ratio is not None and h.size > ratio * length:
            found.append(("ratio", "the disk has %d bytes, more than %d times as many as "
                          "the file (%d)" % (h.size, ratio, length)))
        return found
