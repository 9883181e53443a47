# SPDX-License-Identifier: BSD-3-Clause
"""How to break C code in small ways: the rules of scripts/mutate.

A rule finds places in a source in our style, and says what to write there instead.  The
number of lines stays the same.  A mutant is named FILE:LINE:RULE, or FILE:LINE:RULE#2 if
it is the second one of this rule in this line.
"""

import bisect
import re

import suite

KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "do", "else", "case",
            "goto", "break", "continue"}
# Without these there is no message, or less memory: no behaviour that a disk depends on.
# (Locks are made in memory that is zero, which is what these functions make of it.)
HARMLESS = re.compile(r"(assert|va_(start|end)|report_\w+|free"
                      r"|free_\w+|\w+_free|pthread_\w+_(init|destroy|setkind_np))$")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def without_comments(text):
    """TEXT with blanks for comments, literals and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
                  blank, text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def closing(code, start):
    """The offset after the parenthesis that closes the one at START."""
    depth = 0
    for i in range(start, len(code)):
        if code[i] == "(":
            depth += 1
        elif code[i] == ")":
            depth -= 1
            if depth == 0:
                return i + 1
    return len(code)


def gone(text):
    """An empty statement that has the lines of TEXT."""
    return ";" + "\n" * text.count("\n")


START = re.compile(r"^ +(?=[\w*(])(\w*)", re.M)


class Mutant:
    """CODE with NEW in the place of the text from START to END."""

    def __init__(self, code, rule, start, end, new):
        self.code, self.rule = code, rule
        self.start, self.end, self.new = start, end, new
        self.path = code.path   # "core/space/alloc.c"
        self.line, self.last = code.line(start), code.line(end)
        self.function = next(f for s, e, f in code.functions if s <= start < e)
        self.name = "%s:%d:%s" % (suite.short(self.path), self.line, rule)

    def before(self):
        return self.code.lines[self.line - 1].strip()

    def after(self):
        return " ".join(filter(None, (
            s.strip() for s in self.source().split("\n")[self.line - 1:self.last])))

    def source(self):
        return self.code.text[:self.start] + self.new + self.code.text[self.end:]


class Code:
    def __init__(self, path, text):
        self.path = path
        self.text = text
        self.lines = text.split("\n")
        self.code = without_comments(text)
        self.functions = [(m.start(2), m.end(), m.group(1)) for m in re.finditer(
            r"^(\w+) \([^;{}]*?\)\n(\{\n.*?^\}$)", self.code, re.M | re.S)]
        self.starts = [0] + [m.end() for m in re.finditer("\n", text)]

    def line(self, offset):
        return bisect.bisect_right(self.starts, offset)

    def mutants(self):
        """All of them, in order."""
        edits = [edit for start, end, _ in self.functions for rule in RULES
                 for edit in rule(self, start, end)]
        seen = {}
        for rule, start, end, new in sorted(edits, key=lambda e: (e[1], e[0])):
            m = Mutant(self, rule, start, end, new)
            count = seen[m.name] = seen.get(m.name, 0) + 1
            if count > 1:
                m.name += "#%d" % count
            yield m

    # Parts of the code, as offsets.

    def statements(self, start, end):
        """(start, end, text) of each simple statement: it begins a line, and ends with
        the first semicolon outside of parentheses."""
        for m in START.finditer(self.code, start, end):
            i = at = m.start(1)
            if m.group(1) in KEYWORDS:
                continue
            while i < end and self.code[i] not in ";{}:?":
                i = closing(self.code, i) if self.code[i] == "(" else i + 1
            if i < end and self.code[i] == ";" and self.begins(at):
                yield at, i + 1, self.code[at:i + 1]

    def begins(self, at):
        """Does a statement begin at AT, or does the line continue one?"""
        before = self.code[max(0, at - 1000):at].rstrip()
        return before[-1:] in ";{}:" or before.endswith("else") or \
            (before[-1:] == ")" and not self.is_call(before))

    def is_call(self, before):
        """Does BEFORE end with the arguments of a call (not with those of an if)?"""
        depth = 0
        for i in range(len(before) - 1, -1, -1):
            depth += {")": 1, "(": -1}.get(before[i], 0)
            if depth == 0:
                word = re.search(r"(\w*)\s*$", before[:i]).group(1)
                return word not in ("if", "for", "while", "switch")
        return True

    def conditions(self, start, end):
        """(start, end) of what stands in the parentheses of each if and while."""
        for m in re.finditer(r"\b(?:if|while) (?=\()", self.code[start:end]):
            i = start + m.end()
            yield i + 1, closing(self.code, i) - 1


def words(rule, pattern, new):
    """A rule that replaces each match of PATTERN; NEW is a table or a function."""
    def find(code, start, end):
        for m in re.finditer(pattern, code.code[start:end]):
            yield (rule, start + m.start(), start + m.end(),
                   new[m.group(0)] if isinstance(new, dict) else new(m))
    return find


# --- rules

CALL = re.compile(r"(\w+) \(")
BARRIER = re.compile("sync|flush|barrier")
# A field, an element, or what a pointer points to; not the start of a declaration.
LVALUE = re.compile(r"(?=\*|[^ ]*(?:->|\.|\[))\*?\w(?:[\w>.]|->?|\[[^\]]*\])*"
                    r"(?: (?:[-+|&]|<<|>>)?= |\+\+;|--;)")


def dropped(code, start, end):
    """A statement is left out: a call, a lock, an assignment to a field."""
    for at, stop, text in code.statements(start, end):
        call = CALL.match(text)
        if call:
            name = call.group(1)
            if closing(text, call.end() - 1) != len(text) - 1 or HARMLESS.match(name):
                continue
            if name.endswith(("mutex_lock", "rdlock", "wrlock")):
                continue        # its unlock would have to go too
            if name == "LOCK_FOR_BLOCK":
                yield "no-lock", at, stop, gone(text)
            elif name.endswith("unlock"):
                yield "no-unlock", at, stop, gone(text)
            elif name.endswith(("_signal", "_broadcast")):
                yield "no-wakeup", at, stop, gone(text)
            else:
                yield ("no-barrier" if BARRIER.search(name) else "no-call",
                       at, stop, gone(text))
        elif LVALUE.match(text):
            yield "not-set", at, stop, gone(text)


def step_left_out(code, start, end):
    """if (step () == -1): the step is not done, and has no error."""
    for at, stop in code.conditions(start, end):
        text = code.code[at:stop]
        m = CALL.match(text)
        if m and text[closing(text, m.end() - 1):] == " == -1":
            yield ("no-barrier" if BARRIER.search(m.group(1)) else "no-step",
                   at, stop - len(" == -1"), "0" + "\n" * text.count("\n"))


def inverted(code, start, end):
    for at, stop in code.conditions(start, end):
        yield "inverted", at, stop, "!(" + code.text[at:stop] + ")"


def swapped(code, start, end):
    """Two statements in a row, one of them a call, in the other order."""
    found = list(code.statements(start, end))
    for (at, stop, one), (at2, stop2, two) in zip(found, found[1:]):
        between = code.text[stop:at2]
        if between.strip() or between.count("\n") != 1 or "\n" in one + two:
            continue
        if at - code.text.rfind("\n", 0, at) != at2 - code.text.rfind("\n", 0, at2):
            continue
        calls = [CALL.match(s) for s in (one, two)]
        simple = [c or LVALUE.match(s) for c, s in zip(calls, (one, two))]
        if all(simple) and any(calls) and not any(
                c and re.match("atomic_|" + HARMLESS.pattern, c.group(1))
                for c in calls) and \
                "LOCK_FOR_BLOCK" not in one + two:
            yield ("order", at, stop2,
                   code.text[at2:stop2] + between + code.text[at:stop])


def equality(code, start, end):
    """Only where `inverted' does not do the same."""
    whole = [(at, stop) for at, stop in code.conditions(start, end)
             if not re.search(r"&&|\|\|", code.code[at:stop])]
    for m in re.finditer(r"(?<= )(?:==|!=)(?= (?!-1\b|NULL\b))", code.code[start:end]):
        at = start + m.start()
        if not any(s <= at < e for s, e in whole):
            yield "equality", at, at + 2, {"==": "!=", "!=": "=="}[m.group(0)]


RULES = [
    dropped,
    step_left_out,
    inverted,
    swapped,
    equality,
    words("error-ignored", r" == -1\b", {" == -1": " == -2"}),
    words("error-hidden", r"\breturn -1;", {"return -1;": "return 0;"}),
    words("boundary", r"(?<= )(?:<=|>=|<|>)(?= )",
          {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}),
    words("off-by-one", r" [-+] 1(?!\w)", lambda m: m.group(0)[:3] + "0"),
    words("and-or", r"(?<=[ )])(?:&&|\|\|)(?=\s)", {"&&": "||", "||": "&&"}),
    words("flag", r"\b(?:true|false)\b", {"true": "false", "false": "true"}),
    words("arithmetic", r"(?<=[\w)\]] )[-+](?= (?!1\b)[\w(])", {"+": "-", "-": "+"}),
    words("shift", r"(?<= )(?:<<|>>)(?= )", {"<<": ">>", ">>": "<<"}),
    words("bits", r"(?<=[\w)] )[&|](?= [\w(~])", {"&": "|", "|": "&"}),
    words("min-max", r"\b(?:min64|max64)\b", {"min64": "max64", "max64": "min64"}),
    words("loop-ends", r"\bcontinue;", {"continue;": "break;   "}),
]
