# SPDX-License-Identifier: BSD-3-Clause
"""convert where the plugin can do all of it: to a new qcow2 image by flattening one over
the source (create=, flatten=), to a new raw file by raw-copy=.

So nothing goes through sockets, where each byte would be copied twice more than by
qemu-img, and the plugin's threads compress."""

import os
import stat

import create
import programs
from cli import Failure

LONGEST_NAME = 1023             # bytes of the name of a backing file


def possible(source, snapshot, target, given):
    """Only files, and nothing that nbdcopy's options or a server of ours say."""
    if source.uri or source.share or target.uri or \
            given.get("preallocation", "off") != "off":
        return False
    try:
        found = os.stat(target.path)
    except OSError:
        found = None
    if found and not stat.S_ISREG(found.st_mode):
        return False
    if target.format == "raw":
        return source.format == "qcow2"
    return snapshot is None and below(source, target, given)


def below(source, target, given):
    """Can the source be a backing file of the target for a moment?  (They would have the
    same passphrase.)"""
    kind = os.stat(source.path).st_mode
    return (stat.S_ISREG(kind) or stat.S_ISBLK(kind)) and \
        not source.secrets and not target.secrets and not source.instead and \
        not {"backing_file", "data_file"} & set(given) and is_text(source.path)


def is_text(path):
    try:
        return len(path.encode()) <= LONGEST_NAME and path.isprintable()
    except UnicodeEncodeError:
        return False


def copy(source, snapshot, target, progress):
    progress.show(0)
    if target.made.format == "raw":
        run(source, progress, False, "raw-copy=" + target.made.path,
            "cache=" + target.cache,
            *(["snapshot=" + snapshot] if snapshot is not None else []))
    else:
        given = dict(target.given, backing_file=source.path, backing_fmt=source.format)
        run(target.made, progress, True, *create.parameters_of(given, None),
            "flatten=true", *target.parameters)
    progress.show(1)
    progress.end()


def run(image, progress, writing, *parameters):
    result = image.prepare(*parameters, writing=writing, progress=progress)
    if result.status != 0:
        # The first error says why, the last one how far it came.
        raise Failure(programs.reason(result.said, which=0))
