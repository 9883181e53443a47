# SPDX-License-Identifier: BSD-3-Clause
"""The options of new images, for measure."""

import images
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
