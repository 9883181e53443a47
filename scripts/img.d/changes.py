# SPDX-License-Identifier: BSD-3-Clause
"""amend, bitmap, commit, rebase, resize and snapshot: changes that the plugin makes
before it serves an image.  Each happens as a whole or not at all, or is resumed."""

import os

import cli
import images
import rawfile
from cli import Command, Failure, Option
from progress import Progress


# --- resize

def resize(o):
    name, size = o.operands
    image = images.image_of(o, name, o.format)
    if size[:1] in ("+", "-"):
        parameter = size[0] + str(images.size_of(size[1:]))
    else:
        parameter = str(images.size_of(size))
    with Progress("resize", o) as progress:
        if image.format == "raw":
            rawfile.resize(image, parameter, o.shrink, o.preallocation or "off", progress)
        else:
            image.change("resize=" + parameter, *(["shrink=true"] if o.shrink else []),
                         *(["preallocation=" + o.preallocation] if o.preallocation
                           else []), progress=progress)
    if not o.quiet:
        print("Image resized.")
    return 0


# --- snapshot

def snapshot(o):
    actions = [(option.name, value) for option, value in o.given
               if option.name in ("list", "apply", "create", "delete")]
    if len(actions) > 1:
        raise Failure("only one of -l, -a, -c and -d can be given")
    image = images.image_of(o, o.operands[0], o.format)
    action, name = actions[0] if actions else ("list", None)
    if image.format != "qcow2" and action == "list":
        return 0
    image.need_qcow2("internal snapshots")
    if action == "list":
        import info
        snapshots = info.describe(image).get("snapshots")
        if snapshots:
            print("Snapshot list:")
            print("\n".join(info.snapshot_lines(snapshots)))
        return 0
    image.change("snapshot-%s=%s" % (action, name))
    return 0


# --- bitmap

def bitmap(o):
    name = o.operands[1]
    actions = [(option.name, value) for option, value in o.given
               if option.name in ("add", "remove", "clear", "enable", "disable", "merge")]
    kinds = [kind for kind, _ in actions]
    if not actions:
        raise Failure("at least one of --add, --remove, --clear, --enable, --disable and "
                      "--merge is required")
    if o.granularity is not None and "add" not in kinds:
        raise Failure("-g requires --add")
    if o.source_file is not None and "merge" not in kinds:
        raise Failure("-b requires --merge")
    if o.source_format is not None and o.source_file is None:
        raise Failure("-F requires -b")
    image = images.image_of(o, o.operands[0], o.format)
    image.need_qcow2("persistent bitmaps")
    parameters = []
    for kind, value in actions:
        if kind == "merge":
            parameters += ["bitmap-merge=" + value, "bitmap-into=" + name]
        else:
            parameters.append("bitmap-%s=%s" % (kind, name))
    if o.granularity is not None:
        parameters.append("bitmap-granularity=%d"
                          % images.size_of(o.granularity, "-g"))
    if o.source_file is not None:
        source = images.Image(o.source_file, o.source_format)
        source.need_qcow2("persistent bitmaps")
        parameters.append("bitmap-from=" + source.path)
    image.change(*parameters)
    return 0


# --- commit

def commit(o):
    image = images.image_of(o, o.operands[0], o.format)
    image.need_qcow2("backing files")
    if o.rate is not None:
        raise Failure("-r is not supported")
    cache = ["cache=none"] if o.cache == "none" else []
    with Progress("commit", o) as progress:
        if o.base is not None:
            commit_into(image, o.base, cache, progress)
        else:
            image.change("commit=keep" if o.drop else "commit=on", *cache,
                         progress=progress)
    if not o.quiet:
        print("Image committed.")
    return 0


def commit_into(image, name, cache, progress):
    """Into the file NAME of the chain, what all images over it contain, the lowest one
    first.  As with qemu-img, none of these is emptied, and those between do not show the
    same as before."""
    import info
    refuse_other_backing(image)
    chain = info.describe(image, True)
    n = next((n for n, found in enumerate(chain[:-1])
              if is_backing_file(name, found, chain[n + 1])), None)
    if n is None:
        import publicname
        raise Failure("-b: '%s' is not in the backing chain of %s"
                      % (publicname.shown(name), image.given))
    for found in chain[1:n + 1]:
        # What is beyond its end shows zeros, which it does not contain.
        if found["virtual-size"] != chain[0]["virtual-size"]:
            raise Failure("-b: the disk in %s has another size than that in %s: commit "
                          "one image after the other" % (found["filename"], image.given))
    base = path_of(chain[n + 1])
    for i in reversed(range(n + 1)):
        own = image.secrets_below(chain[:i])[:1] if chain[i].get("encrypted") else []
        upper = images.Image(path_of(chain[i]) if i else image.name, "qcow2",
                             own + image.secrets_below(chain[:n + 1]), False,
                             image.allow_uri)
        below = [] if i == n else [
            "backing=" + base, "backing-format=" + chain[n]["backing-filename-format"]]
        progress.within((n - i) / (n + 1), (n - i + 1) / (n + 1))
        upper.change("commit=keep", *below, *cache, progress=progress)


def path_of(found):
    return found["filename"] if images.is_uri(found["filename"]) else \
        os.path.abspath(found["filename"])


def is_backing_file(name, found, below):
    """Does NAME mean the file BELOW the one that FOUND describes?"""
    return name in (found["backing-filename"], found["full-backing-filename"]) or \
        os.path.exists(name) and not images.is_uri(below["filename"]) and \
        os.path.samefile(below["filename"], name)


def refuse_other_backing(image):
    """(The plugin is told of another one in the same way.)"""
    if any(p.startswith("backing") for p in image.instead):
        raise Failure("--image-opts: this needs the backing file that the image names "
                      "(rebase -u changes the name)")


# --- rebase

def rebase(o):
    image = images.image_of(o, o.operands[0], o.format)
    image.need_qcow2("backing files")
    refuse_other_backing(image)
    if o.backing is None:
        raise Failure("-b is required (-b '' for no backing file)")
    if o.backing and o.backing_format is None:
        raise Failure("the format of the backing file is required: -F qcow2 or raw")
    if o.backing_format is not None and not o.backing:
        raise Failure("-F requires the name of a backing file")
    parameters = ["rebase=" + o.backing]
    if o.backing:
        parameters.append("backing-format=" + o.backing_format)
        if images.is_uri(o.backing):
            parameters.append("allow-uri=" + o.backing)
    if o.backing_unsafe:
        parameters.append("rebase-unsafe=true")
    if o.compress:
        parameters.append("compress=on")
    if "none" in (o.cache, o.src_cache):
        parameters.append("cache=none")
    with Progress("rebase", o) as progress:
        image.change(*parameters, progress=progress)
    return 0


# --- amend

# The options that can change: name for -o, name of the plugin's parameter, what it is.
AMENDABLE = (
    ("compat", "compat", "the version of the format: 0.10 (v2) or 1.1 (v3)"),
    ("data_file_raw", "data-file-raw", "off: the data file is not a raw image any more"),
    ("encrypt.iter-time", None, "milliseconds to test the new passphrase (2000)"),
    ("encrypt.keyslot", None, "the key slot that is used or erased"),
    ("encrypt.new-secret", None, "the id of the passphrase that is added"),
    ("encrypt.old-secret", None, "the id of the passphrase that is erased"),
    ("encrypt.state", None, "active to add a passphrase, inactive to erase one"),
    ("lazy_refcounts", "lazy-refcounts", "postpone updates of refcounts"),
    ("refcount_bits", "refcount-bits", "the width of refcounts: 1, 2, 4, ... 64"),
    ("size", None, "the size of the disk"),
)
# What does the same for the others.
ELSEWHERE = {"backing_file": "use rebase -u", "backing_fmt": "use rebase -u"}


def amend(o):
    if images.asks_for_help(o.options):
        images.show_options(AMENDABLE)
        return 0
    if not o.operands:
        raise Failure("usage: %s amend [OPTION...] -o OPTIONS IMAGE" % cli.PROGRAM)
    given = dict(kv for text in o.options for kv in images.key_values(text))
    if not given:
        raise Failure("-o is required: what is to change")
    secrets = images.Secrets(o.object)
    image = images.image_of(o, o.operands[0], o.format, secrets)
    image.need_qcow2("options that could be amended")
    keys = {key: given.pop(key) for key in list(given) if key.startswith("encrypt.")}
    size = new_size(image, given.pop("size", None), o.force)
    parameters = amend_parameters(given) + size
    passphrases = images.Passphrases([])
    if keys:
        if not image.secrets:
            raise Failure("the secret that opens the image is required: --image-opts "
                          "driver=qcow2,file.filename=NAME,encrypt.key-secret=ID")
        passphrases = key_change(keys, secrets, o.force)
    try:
        with Progress("amend", o) as progress:
            image.change(*parameters, *passphrases.parameters, fds=passphrases.fds,
                         progress=progress)
    finally:
        passphrases.close()
    return 0


def amend_parameters(given):
    known = {name: parameter for name, parameter, _ in AMENDABLE if parameter}
    parameters = ["amend=true"] if given else []
    for key, value in given.items():
        if key not in known:
            raise Failure("-o: '%s' cannot be amended: %s" % (
                key, ELSEWHERE.get(key, "convert makes a new image with other options")))
        if key == "refcount_bits":
            images.number_of(value, key, 1)
        elif key != "compat":
            images.is_on(key, value)
        parameters.append("%s=%s" % (known[key], value))
    return parameters


def new_size(image, text, force):
    """The parameters for this size of the disk.  All that the plugin would refuse, because
    it makes the other changes first."""
    if text is None:
        return []
    import info
    size = images.size_of(text)
    if size == 0 or size % images.SECTOR:
        raise Failure("-o: the new size must be a multiple of 512, and greater than 0")
    if size < info.describe(image)["virtual-size"] and not force:
        raise Failure("-o: the disk would become smaller: use resize --shrink, or --force")
    return ["resize=%d" % size] + (["shrink=true"] if force else [])


def key_change(given, secrets, force):
    """What adds or erases a passphrase."""
    state = given.pop("encrypt.state", None)
    slot = given.pop("encrypt.keyslot", None)
    given.pop("encrypt.format", None)
    adds = state == "active"
    secret = given.pop("encrypt.%s-secret" % ("new" if adds else "old"), None)
    if state not in ("active", "inactive") or secret is None and (adds or slot is None):
        raise Failure("either encrypt.state=active with encrypt.new-secret=ID (and "
                      "encrypt.keyslot=N, a free one) or encrypt.state=inactive with "
                      "encrypt.old-secret=ID or encrypt.keyslot=N is required")
    name = "key-add" if adds else "key-erase"
    more = []
    if slot is not None:
        more.append("%s-slot=%d" % (name, images.number_of(slot, "encrypt.keyslot")))
    if adds and "encrypt.iter-time" in given:
        more.append("iter-time=" + given.pop("encrypt.iter-time"))
    if force and not adds:
        more.append("key-force=true")
    if given:
        raise Failure("-o: '%s' cannot be used with encrypt.state=%s"
                      % (next(iter(given)), state))
    found = images.Passphrases([] if secret is None else [secrets.get(secret)], name)
    found.parameters += more
    return found


COMMANDS = {
    "amend": Command(
        "amend", "-o OPTIONS IMAGE",
        "Change options of an image that exists: its version, and some features.",
        [cli.FORMAT, cli.QUIET, cli.PROGRESS, cli.CACHE,
         Option("o", "options", "KEY=VALUE,...: what is to change; help lists what can",
                "OPTIONS", True),
         Option(None, "force", "erase also the last passphrase; make the disk smaller"),
         *cli.IMAGE],
        amend, 0, 1),
    "resize": Command(
        "resize", "IMAGE [+|-]SIZE",
        "Change the size of the disk in an image: to SIZE, or by SIZE.",
        [cli.FORMAT, cli.QUIET, cli.PROGRESS,
         Option(None, "shrink", "allow the disk to become smaller; what is beyond the "
                "new size is lost"),
         Option(None, "preallocation", "how space for the new part is allocated (default "
                "off)", choices=("off", "metadata", "falloc", "full")), *cli.IMAGE],
        resize, 2, 2, True),
    "snapshot": Command(
        "snapshot", "IMAGE",
        "List or change the internal snapshots of an image.  SNAPSHOT is a name or an "
        "id.",
        [cli.FORMAT, cli.QUIET, cli.SHARE,
         Option("l", "list", "list the snapshots (the default)"),
         Option("a", "apply", "revert the disk to this snapshot", "SNAPSHOT"),
         Option("c", "create", "take a snapshot", "NAME"),
         Option("d", "delete", "delete this snapshot", "SNAPSHOT"), *cli.IMAGE],
        snapshot),
    "bitmap": Command(
        "bitmap", "IMAGE BITMAP",
        "Change a persistent bitmap of an image.  All actions happen, in the order "
        "given, or none.",
        [cli.FORMAT,
         Option(None, "add", "add the bitmap; it records changes from then on"),
         Option(None, "remove", "remove the bitmap"),
         Option(None, "clear", "remove all marks from the bitmap"),
         Option(None, "enable", "have it record changes"),
         Option(None, "disable", "have it record changes no more"),
         Option(None, "merge", "mark what is marked in this other bitmap", "SOURCE",
                True),
         Option("g", "granularity", "the granularity of a bitmap that is added", "SIZE"),
         Option("b", "source-file", "the image with the bitmaps SOURCE (default IMAGE)",
                "FILE"),
         Option("F", "source-format", "the format of FILE", "FORMAT"), *cli.IMAGE],
        bitmap, 2, 2),
    "commit": Command(
        "commit", "IMAGE",
        "Write what an image contains into its backing file, and empty the image.",
        [cli.FORMAT, cli.QUIET, cli.PROGRESS, cli.CACHE,
         Option("d", "drop", "do not empty the image"),
         Option("b", "base", "write into this file of the backing chain what all images "
                "over it contain; implies -d", "BASE"),
         Option("r", "rate", "refused", "RATE"), *cli.IMAGE],
        commit),
    "rebase": Command(
        "rebase", "-b FILE -F FORMAT IMAGE",
        "Put an image over another backing file.  What is different there is copied into "
        "the image first.",
        [cli.FORMAT, cli.QUIET, cli.PROGRESS, cli.CACHE, cli.SOURCE_CACHE, cli.SHARE,
         Option("b", "backing", "the new backing file; '' for none", "FILE"),
         Option("F", "backing-format", "its format", "FORMAT"),
         Option("u", "backing-unsafe", "copy nothing, only change the name in the image"),
         Option("c", "compress", "compress what is copied"), *cli.IMAGE],
        rebase),
}
