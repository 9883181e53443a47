# SPDX-License-Identifier: BSD-3-Clause
"""check: the plugin checks and repairs an image (check=), and writes its report into a
file in memory."""

import os

import cli
import images
import jsontext
import programs
from cli import Command, Failure, Option
from progress import Progress

# Exit statuses.
CLEAN, FAILED, CORRUPT, LEAKS, NOT_SUPPORTED = 0, 1, 2, 3, 63

# What the plugin says of a header that is valid, in a file that is too short.
TOO_SHORT = ("lies beyond the end of the file", "the file ends within its first cluster")

# The keys of qemu-img.  They are left out if they are 0, all but check-errors.
COUNTERS = ("image-end-offset", "total-clusters", "allocated-clusters",
            "compressed-clusters", "fragmented-clusters", "corruptions", "leaks")
FIXED = ("corruptions-fixed", "leaks-fixed")


def check(o):
    image, = [images.image_of(o, name, o.format) for name in o.operands]
    if image.format != "qcow2":
        raise Failure("%s: raw images have nothing that could be checked" % image.given,
                      NOT_SUPPORTED)
    repair = {"leaks": "repair-leaks", "all": "repair", None: "quick"}[o.repair]
    with Progress("check", o, o.output == "json") as progress:
        found, fixed, counters = run_all(image, repair, progress)
    if o.output == "json":
        print(as_json(image, counters))
    elif not o.quiet:
        tell(found, counters)
    if o.repair and counters["corruptions"] and not found["repaired"]:
        cli.tell("%s: nothing was changed: more is wrong than %s" % (
            image.given, "leaks" if o.repair == "leaks" else
            "reference counts and entries of the snapshot table"))
    if found.get("marked-corrupt"):
        cli.tell("%s: it is marked corrupt, so that programs only read it%s" % (
            image.given, "" if counters["corruptions"] else
            "; no corruption was found: check -r all removes the mark"))
    if counters["check-errors"]:
        cli.tell(found["said"])
        return FAILED
    return CORRUPT if counters["corruptions"] else LEAKS if counters["leaks"] else CLEAN


def run_all(image, how, progress):
    """What is there at the end, what was repaired, and all counters."""
    if how != "quick":
        progress.within(0, 0.8)
    found = run(image, how, progress)
    fixed = {name: found.get(name, 0) for name in FIXED}
    lost = found.get("lost", ()) if found["repaired"] else ()
    if any(fixed.values()):
        # What is there now, which also tells where the image ends now.
        progress.within(0.8, 1)
        found = run(image, "quick", progress)
    for loss in lost:
        cli.tell("%s: repaired: %s" % (image.given, loss["message"]))
    return found, fixed, {**judged(found), **fixed}


def run(image, how, progress):
    """What the plugin reports about the image itself, without its backing files."""
    file = programs.text_file()
    # (Not served, it needs no passphrase.)
    result = image.prepare("check=" + how, "check-report=/dev/fd/%d" % file,
                           "serve=false", writing=how != "quick", fds=[file],
                           progress=progress)
    text = programs.text_of(file)
    os.close(file)
    if not text:
        raise Failure(programs.reason(result.said))
    report = jsontext.loads(text)
    layer = report["layers"][0]
    layer["check-errors"], layer["repaired"] = report["check-errors"], report["repaired"]
    # Of several errors, the first one has the cause.
    layer["said"] = programs.reason(result.said, which=0)
    if report["verdict"] == "incomplete":
        layer["said"] = "%s: incomplete: %s" % (image.given, layer["said"])
    if any(e["kind"] == "header" for e in layer["errors"]):
        cut = any(text in layer["said"] for text in TOO_SHORT)
        raise Failure(layer["said"], CORRUPT if cut else FAILED)
    return layer


def judged(found):
    """The counters as qemu-img would give them: for it, outdated refcounts are like any
    others."""
    counters = {name: found.get(name, 0) for name in (*COUNTERS, "check-errors")}
    counters["corruptions" if found["dirty"] else "leaks"] += found["stale-refcounts"]
    return counters


def as_json(image, counters):
    found = {name: n for name, n in counters.items() if n or name == "check-errors"}
    found.update({"filename": image.given, "format": image.format})
    return jsontext.dumps(found, 4)


def tell(found, c):
    for error in found["errors"]:
        cli.tell("%s: %s" % (error["kind"], error["message"]))
    if found["errors-omitted"]:
        cli.tell("%d more" % found["errors-omitted"])
    if c["leaks-fixed"] or c["corruptions-fixed"]:
        print("The following inconsistencies were found and repaired:\n\n"
              "    %d leaked clusters\n    %d corruptions\n"
              % (c["leaks-fixed"], c["corruptions-fixed"]))
    if not (c["corruptions"] or c["leaks"] or c["check-errors"]):
        print("No errors were found on the image.")
    if c["corruptions"]:
        print("\n%d errors were found on the image.\nData may be corrupted, or further "
              "writes to the image may corrupt it." % c["corruptions"])
    if c["leaks"]:
        print("\n%d leaked clusters were found on the image.\nThis means waste of disk "
              "space, but no harm to data." % c["leaks"])
    if c["check-errors"]:
        print("\n%d internal errors have occurred during the check." % c["check-errors"])
    if c["total-clusters"] and c["allocated-clusters"]:
        allocated = c["allocated-clusters"]
        print("%d/%d = %.2f%% allocated, %.2f%% fragmented, %.2f%% compressed clusters"
              % (allocated, c["total-clusters"], allocated * 100 / c["total-clusters"],
                 c["fragmented-clusters"] * 100 / allocated,
                 c["compressed-clusters"] * 100 / allocated))
    if c["image-end-offset"]:
        print("Image end offset: %d" % c["image-end-offset"])


COMMANDS = {"check": Command(
    "check", "IMAGE",
    "Check the metadata of an image: all tables and refcounts, internal snapshots and "
    "bitmaps.  Exit status: 0 no errors, 1 the check could not be completed, 2 the image "
    "is corrupt, 3 it has leaked clusters, 63 the format cannot be checked.",
    [cli.FORMAT, cli.OUTPUT, cli.QUIET, cli.PROGRESS, cli.SHARE, cli.SOURCE_CACHE,
     Option("r", "repair", "repair leaks, or all refcounts, flags and snapshot entries",
            choices=("leaks", "all")), *cli.IMAGE],
    check)}
