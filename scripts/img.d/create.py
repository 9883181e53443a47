# SPDX-License-Identifier: BSD-3-Clause
"""What convert and dd share: the options of new images, and new files that appear under their
names when they are complete."""

import os
import stat

import images
import programs
from cli import Failure

# The options of a new qcow2 image: name for -o, name of the plugin's parameter (None: it
# is dealt with here), what it is.
OPTIONS = (
    ("backing_file", None, "the backing file (as -b)"),
    ("backing_fmt", None, "the format of the backing file (as -F)"),
    ("cluster_size", "cluster-size", "the cluster size (default 64K)"),
    ("compat", "compat", "the version of the format: 0.10 (v2) or 1.1 (v3, the default)"),
    ("compression_type", "compression-type", "zlib (the default) or zstd"),
    ("data_file", "data-file", "the new external data file"),
    ("data_file_raw", "data-file-raw", "the data file is a raw image at any time"),
    ("encrypt.format", "encrypt", "luks: encrypt the disk"),
    ("encrypt.iter-time", "iter-time", "milliseconds to test a passphrase (2000)"),
    ("encrypt.key-secret", None, "the id of the secret (--object) with the passphrase"),
    ("extended_l2", "extended-l2", "divide clusters into 32 subclusters"),
    ("lazy_refcounts", "lazy-refcounts", "postpone updates of refcounts"),
    ("preallocation", "preallocation", "off (the default), metadata, falloc or full"),
    ("refcount_bits", "refcount-bits", "the width of refcounts (default 16)"),
    ("size", None, "the size of the disk"),
)
RAW_OPTIONS = (
    ("preallocation", None, "off (the default), falloc or full"),
    ("size", None, "the size of the disk"),
)
PARAMETER = {name: parameter for name, parameter, _ in OPTIONS}
BOOLEANS = ("data_file_raw", "extended_l2", "lazy_refcounts")
SIZES = ("cluster_size",)


def show_options(format):
    images.show_options(OPTIONS if format == "qcow2" else RAW_OPTIONS)


def options_of(texts, format):
    """The values of -o, by name."""
    allowed = [name for name, _, _ in (OPTIONS if format == "qcow2" else RAW_OPTIONS)]
    given = {}
    for text in texts:
        for key, value in images.key_values(text):
            if key == "encryption":
                raise Failure("encryption: use encrypt.format=luks")
            if key not in allowed:
                raise Failure("-o: '%s' is not an option of %s images (-o help lists "
                              "them)" % (key, format))
            given[key] = value
    for key in BOOLEANS:
        if key in given:
            images.is_on(key, given[key])
    for key in SIZES:
        if key in given:
            given[key] = str(images.size_of(given[key], key))
    return given


def passphrase_of(given, secrets):
    """For the new image, as a list; none if it is not encrypted."""
    if "encrypt.format" not in given:
        if "encrypt.key-secret" in given or "encrypt.iter-time" in given:
            raise Failure("encrypt.key-secret and encrypt.iter-time require "
                          "encrypt.format=luks")
        return []
    if "encrypt.key-secret" not in given:
        raise Failure("encrypt.format requires encrypt.key-secret=ID and --object "
                      "secret,id=ID,...")
    return [secrets.get(given["encrypt.key-secret"])]


def check_backing(given):
    if "backing_file" in given and "backing_fmt" not in given:
        raise Failure("the format of the backing file is required: -F qcow2 or raw")
    if "backing_fmt" in given and "backing_file" not in given:
        raise Failure("-F requires the name of a backing file")


def parameters_of(given, size):
    """Those of the plugin for a new image with these options.  SIZE is None for that of
    the backing file."""
    found = ["create=%s" % ("auto" if size is None else size)]
    for key, value in sorted(given.items()):
        if key == "data_file":
            value = images.check_name(value)
            if "/" in value:
                value = images.path_of(value)
        if PARAMETER[key]:
            found.append("%s=%s" % (PARAMETER[key], value))
    check_backing(given)
    if "backing_file" in given:
        found += ["backing-file=" + given["backing_file"],
                  "backing-format=" + given["backing_fmt"]]
    return found


# --- New files.

class NewFile:
    """A file that is made under another name in the same directory and then gets its own:
    until then, what exists there stays, locked.  A device or an NBD export is written
    directly.  DATA_FILE is the name of the external data file that is made with an image.

    name is where it is made.  durable: with its name, after complete."""

    def __init__(self, image, data_file=None):
        self.image = image
        self.durable = True
        self.old = None             # descriptor of the file that is replaced
        self.target = image.path
        self.direct = image.uri
        self.name = image.path
        if image.uri:
            return
        try:
            found = os.stat(image.path)
        except FileNotFoundError:
            found = None
        self.target = os.path.realpath(image.path)
        if found and stat.S_ISDIR(found.st_mode):
            raise Failure("%s: is a directory" % image.given)
        if found and not stat.S_ISREG(found.st_mode):
            if not stat.S_ISBLK(found.st_mode):
                raise Failure("%s: is neither a file nor a block device (- is stdout)"
                              % image.given)
            self.direct = True
            return
        self.name = "%s/.qcow2-img.%s" % (os.path.dirname(self.target),
                                          os.urandom(6).hex())
        if found:
            import locks
            try:
                self.old = locks.hold(self.target, image.given, locks.REPLACING)
            except OSError as e:
                raise Failure("%s: %s" % (image.given, e.strerror)) from None
        programs.remove_at_end(self.name, image.given,
                               data_file and images.path_of(data_file))

    def replaces(self):
        """Is there something that would be lost?"""
        return self.direct or self.old is not None

    def complete(self):
        if self.direct:
            return
        if self.old is None:
            self.appear()
        else:
            self.replace()
        programs.keep(self.name)
        if self.durable:
            directory = os.open(os.path.dirname(self.target), os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        if self.old is not None and os.fstat(self.old).st_nlink == 0:
            # Who opened it before, and gets its locks when this process has ended, finds
            # no image to write to.
            os.ftruncate(self.old, 0)

    def appear(self):
        """Under a name that does not exist."""
        try:
            os.link(self.name, self.target)
            os.unlink(self.name)
        except FileExistsError:
            self.fail_changed()
        except OSError:
            # A filesystem without links.
            if os.path.lexists(self.target):
                self.fail_changed()
            os.rename(self.name, self.target)

    def replace(self):
        old = os.fstat(self.old)
        if not os.path.exists(self.target) or \
                not os.path.samestat(os.stat(self.target), old):
            self.fail_changed()
        try:
            os.chown(self.name, old.st_uid, old.st_gid)
        except PermissionError:
            pass                # only root can give files away
        os.chmod(self.name, stat.S_IMODE(old.st_mode))
        os.rename(self.name, self.target)

    def fail_changed(self):
        raise Failure("%s: another program has made, moved or removed the file meanwhile"
                      % self.image.given) from None
