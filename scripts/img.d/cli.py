# SPDX-License-Identifier: BSD-3-Clause
"""The command line: which commands there are, what their options mean, and --help.

A family of commands is a module with a dictionary COMMANDS.  Only the module of the
command that runs is loaded, because the commands have to start quickly; for the same
reason the usual modules of Python are imported where they are needed.
"""

import os
import sys

PROGRAM = "nbdkit-qcow2-img"

# Which module has which commands.
FAMILIES = {
    "info": ("info",),
    "mapping": ("map",),
}
# Those that only the program in C has, for --help.
ELSEWHERE = {
    "amend": "Change options of an image that exists",
    "advise-cache": "Measure how much l2-cache an image needs so that no mapping is read "
                    "twice",
    "validate": "Check images for faults",
    "apply-changes": "Apply an incremental backup to an older copy of the disk",
    "bench": "Measure how long requests take",
    "bitmap": "Change a persistent bitmap of an image",
    "check": "Check the metadata of an image",
    "commit": "Write what an image contains into its backing file, and empty the image",
    "compare": "Compare the disks of two images",
    "convert": "Copy disks to a new image",
    "create": "Create an image with a disk of SIZE, which is not required with a backing file",
    "dd": "Copy a part of a disk to a new image",
    "measure": "Tell how large the file of a new image becomes, with the data of IMAGE or "
               "none, and when all of the disk has been written",
    "rebase": "Put an image over another backing file",
    "resize": "Change the size of the disk in an image",
    "snapshot": "List or change the internal snapshots of an image",
}
FAMILY = {name: module for module, names in FAMILIES.items() for name in names}


class Failure(Exception):
    """What the user is told, in one line, and the exit status."""

    def __init__(self, text, status=1):
        super().__init__(text)
        self.status = status


class About:
    """Errors of the host in this block are about this file.  (They name those that could
    not be opened, but not those that could not be read.)"""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        pass

    def __exit__(self, _kind, error, _trace):
        if isinstance(error, OSError) and error.filename is None:
            error.filename = self.name


class Option:
    """-SHORT, --LONG [VALUE].  Either name may be missing.

    Its value is the attribute LONG of what parse returns: the last VALUE, or a list of
    them if it can be REPEATED; without VALUE whether it was given.  CHOICES are the
    values that it can have.
    """

    def __init__(self, short, long, text, value=None, repeated=False, choices=None):
        self.short = short
        self.long = long
        self.text = text
        self.value = "|".join(choices) if choices else value
        self.repeated = repeated
        self.choices = choices

    @property
    def name(self):
        return (self.long or self.short).replace("-", "_")

    def names(self):
        both = [n for n in (self.short and "-" + self.short,
                            self.long and "--" + self.long) if n]
        return ", ".join(both) + (" " + self.value if self.value else "")


class Command:
    """NAME [OPTION...] OPERANDS.  run gets what parse returns, and returns the exit
    status.  LEAST and MOST operands are possible (MOST is None: any number).  The last
    word can be an operand whatever it begins with (resize IMAGE -SIZE)."""

    def __init__(self, name, operands, text, options, run, least=1, most=1,
                 last_is_operand=False):
        self.name = name
        self.operands = operands
        self.text = text
        self.options = options + [HELP]
        self.run = run
        self.last_is_operand = last_is_operand
        self.least = least
        self.most = most


class Arguments:
    """The values of options, the operands, and all options in the order given."""

    def __init__(self, command):
        self.operands = []
        self.given = []
        for option in command.options:
            setattr(self, option.name, [] if option.repeated else
                    None if option.value else False)

    def take(self, option, value):
        if option.choices and value not in option.choices:
            raise Failure("%s: '%s' is not one of %s"
                          % (option.names().split(", ")[0].split(" ")[0], value,
                             ", ".join(option.choices)))
        if option.repeated:
            getattr(self, option.name).append(value)
        else:
            setattr(self, option.name, value if option.value else True)
        self.given.append((option, value))


# Options that many commands have.

HELP = Option("h", "help", "show this text")
FORMAT = Option("f", "format", "the format of the image; without it, it is probed",
                "FORMAT")
QUIET = Option("q", "quiet", "print nothing but errors")
SHARE = Option("U", "force-share", "read the image although another program writes it")
OBJECT = Option(None, "object", "a secret,id=ID,data=TEXT or secret,id=ID,file=NAME, "
                "with the passphrase of encrypted images", "OBJECT", True)
IMAGE_OPTS = Option(None, "image-opts", "IMAGE is not a name, but "
                    "driver=qcow2,file.filename=NAME,encrypt.key-secret=ID")
OUTPUT = Option(None, "output", "the form of the output (default human)",
                choices=("human", "json"))
SVG = Option(None, "svg", "the output is a picture, in SVG")
CACHE = Option("t", "cache", "how the host caches what is written; none keeps data out "
               "of its cache, the others are the same", "MODE")
SOURCE_CACHE = Option("T", "src-cache", "the same for what is only read", "MODE")
PROGRESS = Option("p", "progress", "print the progress in lines")
ALLOW_URI = Option(None, "allow-uri", "images may name backing files and data files "
                   "that are below this NBD URI", "URI", True)
IMAGE = [OBJECT, IMAGE_OPTS, ALLOW_URI]


def parse(command, argv):
    """As GNU getopt_long: options and operands in any order, and long names can be
    abbreviated."""
    arguments = Arguments(command)
    rest = list(argv)
    last = []
    if command.last_is_operand and len(rest) > 1 and rest != ["--help"]:
        last = [rest.pop()]
    while rest:
        word = rest.pop(0)
        if word == "--":
            arguments.operands += rest
            break
        if word.startswith("--"):
            parse_long(command, arguments, word[2:], rest)
        elif word.startswith("-") and word != "-":
            parse_short(command, arguments, word[1:], rest)
        else:
            arguments.operands.append(word)
    arguments.operands += last
    return arguments


def parse_long(command, arguments, word, rest):
    name, equals, value = word.partition("=")
    found = [o for o in command.options if o.long and o.long.startswith(name)]
    exact = [o for o in found if o.long == name]
    if len(exact or found) != 1:
        raise Failure("%s option --%s" % ("ambiguous" if found else "unknown", name))
    option = (exact or found)[0]
    if not option.value:
        if equals:
            raise Failure("option --%s has no value" % option.long)
    elif not equals:
        value = next_word(option, rest)
    arguments.take(option, value)


def parse_short(command, arguments, word, rest):
    while word:
        option = next((o for o in command.options if o.short == word[0]), None)
        if option is None:
            raise Failure("unknown option -%s" % word[0])
        word = word[1:]
        if option.value:
            arguments.take(option, word or next_word(option, rest))
            return
        arguments.take(option, None)


def next_word(option, rest):
    if not rest:
        raise Failure("option %s requires a value" % option.names().split(", ")[0])
    return rest.pop(0)


# --- Help.

def show_help(command):
    import textwrap
    width = 90
    print("usage: %s %s [OPTION...] %s\n" % (PROGRAM, command.name, command.operands))
    print("\n".join(textwrap.wrap(command.text, width)) + "\n")
    for option in command.options:
        names = "  " + option.names()
        lines = textwrap.wrap(option.text, width - 28)
        if len(names) > 26:
            print(names)
            names = ""
        for line in lines:
            print("%-28s%s" % (names, line))
            names = ""


def show_all(version):
    print("""usage: %s [--nbdkit PROGRAM] [--plugin PLUGIN] COMMAND [OPTION...] ...

The commands of qemu-img for qcow2 images, with nbdkit's qcow2 plugin, without QEMU:
""" % PROGRAM)
    texts = {name: load(name).text.split(".")[0].split(": ")[0] for name in FAMILY}
    for name, text in sorted({**texts, **ELSEWHERE}.items()):
        print("  %-10s %s" % (name, text + "."))
    print("""
"%s COMMAND --help" describes the options of a command.  This is version %s."""
          % (PROGRAM, version))


# --- The program.

def load(name):
    if name not in FAMILY:
        raise Failure("unknown command '%s': see %s --help" % (name, PROGRAM))
    return __import__(FAMILY[name]).COMMANDS[name]


def main(argv, version):
    import programs
    open_standard_descriptors()
    # Whatever the locale, a name is no reason to fail.
    sys.stdout.reconfigure(errors="surrogateescape")
    sys.stderr.reconfigure(errors="surrogateescape")
    return programs.until_interrupted(lambda: dispatch(argv, version))


def open_standard_descriptors():
    """If they are closed, files would get their numbers, and messages."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)


def dispatch(argv, version):
    """The exit status.  Failures are told here, in one line."""
    try:
        status = run(argv[1:], version)
        sys.stdout.flush()
        return status
    except Failure as e:
        tell(str(e))
        return e.status
    except OSError as e:
        tell(why(e))
        return 1


def why(error):
    if isinstance(error, Failure):
        return str(error)
    return "%s: %s" % (error.filename or "stdout", error.strerror)


def tell(text):
    """Nothing, if another program has said it already."""
    import programs
    try:
        sys.stdout.flush()
    except OSError:
        # What could not be written is not to be tried again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if text:
        programs.draw("")
        text = programs.with_given_names(text)
        print("%s: %s" % (PROGRAM, " ".join(text.split("\n"))), file=sys.stderr)


def run(words, version):
    import programs
    while words and words[0] in ("--nbdkit", "--plugin") and len(words) > 1:
        setattr(programs, words[0][2:], words[1])
        words = words[2:]
    if not words:
        raise Failure("no command was given: see %s --help" % PROGRAM)
    if words[0] in ("--help", "-h"):
        show_all(version)
        return 0
    if words[0] in ("--version", "-V"):
        print("%s %s" % (PROGRAM, version))
        return 0
    command = load(words[0])
    arguments = parse(command, words[1:])
    if arguments.help:
        show_help(command)
        return 0
    count = len(arguments.operands)
    if count < command.least or command.most is not None and count > command.most:
        raise Failure("usage: %s %s [OPTION...] %s" % (PROGRAM, command.name,
                                                       command.operands))
    return command.run(arguments)
