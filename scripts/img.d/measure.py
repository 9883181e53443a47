# SPDX-License-Identifier: BSD-3-Clause
"""measure: how large the file of a new image becomes.

How large it is when all of the disk was written is known to the plugin, which says so of
each image that it serves (maximum in stats=): of a small trial image with these options.
What is not data now needs no space."""

import os

import cli
import create
import images
import jsontext
import mapping
import programs
from cli import Command, Failure, Option

DEFAULT_CLUSTER = 65536
DIRECTORY_ENTRY = 24            # bytes before the name, in the directory of bitmaps
TABLE_ENTRY = 8


def measure(o):
    format = o.target_format or "raw"
    if images.asks_for_help(o.options):
        create.show_options(format)
        return 0
    if (o.size is None) == (not o.operands):
        raise Failure("either --size or an image is required")
    if o.size is not None and (o.snapshot is not None or o.format is not None):
        raise Failure("--size cannot be used with -f and -l")
    if format not in images.FORMATS:
        raise Failure("-O %s: only qcow2 and raw can be measured" % format)
    given = create.options_of(o.options, format)
    secrets = images.Secrets(o.object)
    image = images.image_of(o, o.operands[0], o.format, secrets) if o.operands else None
    size = given.pop("size", o.size)
    runs, bitmaps = [], None
    if image:
        snapshot = snapshot_name(o.snapshot)
        if snapshot is not None:
            image.need_qcow2("internal snapshots")
        if image.format == "raw":
            runs = list(mapping.raw_runs(image))
        else:
            (found, *_), runs = mapping.chain_and_runs(image, snapshot)
            if found["format-specific"]["data"]["compat"] != "0.10":
                bitmaps = found["format-specific"]["data"].get("bitmaps", [])
            runs = list(runs)
        size = runs[-1]["start"] + runs[-1]["length"] if runs else 0
    else:
        size = images.size_of(size, "--size")
    size = images.round_up(size, images.SECTOR)
    if format == "raw":
        tell(o, {"required": size, "fully-allocated": size})
        return 0
    cluster = int(given.get("cluster_size", DEFAULT_CLUSTER))
    # (The plugin refuses 0.)
    size = images.round_up(size, cluster or 1)
    full = full_size(given, size, create.passphrase_of(given, secrets))
    data = size
    if given.get("preallocation") not in ("falloc", "full") and \
            "backing_file" not in given:
        data = data_bytes(runs, cluster, size)
    counted = {"required": full - size + data, "fully-allocated": full}
    if bitmaps is not None and given.get("compat") not in ("0.10", "v2"):
        counted["bitmaps"] = bitmap_bytes(bitmaps, size, cluster) if bitmaps else 0
    tell(o, counted)
    return 0


def snapshot_name(text):
    """-l NAME, or -l snapshot.id=ID or snapshot.name=NAME."""
    if text is None or not text.startswith("snapshot."):
        return text
    given = dict(images.key_values(text))
    name = given.pop("snapshot.id", None) or given.pop("snapshot.name", None)
    if name is None or given:
        raise Failure("-l %s: either snapshot.id or snapshot.name is required" % text)
    return name


def full_size(given, size, secrets):
    """Of the file, when all of the disk was written."""
    options = {key: value for key, value in given.items()
               if key not in ("backing_file", "backing_fmt", "preallocation", "data_file",
                              "data_file_raw")}
    if "encrypt.format" in options:
        options["encrypt.iter-time"] = "1"
    trial = images.Image(os.path.join(programs.directory(), "trial"), "qcow2", secrets)
    stats = os.path.join(programs.directory(), "stats")
    trial.make(*create.parameters_of(options, size), "stats=" + stats)
    with open(stats, encoding="utf-8") as f:
        return jsontext.loads(f.read())["file"]["maximum"]


def data_bytes(runs, cluster, size):
    """Clusters that contain data."""
    end, count = 0, 0
    for run in runs:
        if run["zero"]:
            continue
        at, length = run["start"], run["length"]
        begin = max(end, at // cluster * cluster)
        end = max(end, images.round_up(at + length, cluster))
        count += max(0, end - begin)
    return min(count, size)


def bitmap_bytes(bitmaps, size, cluster):
    """What copies of these bitmaps need."""
    total, directory = 0, 0
    for b in bitmaps:
        bits = -(-size // b["granularity"])
        contents = images.round_up(-(-bits // 8), cluster)
        table = images.round_up(contents // cluster * TABLE_ENTRY, cluster)
        total += contents + table
        directory += images.round_up(DIRECTORY_ENTRY + len(os.fsencode(b["name"])), 8)
    return total + images.round_up(directory, cluster)


def tell(o, counted):
    if o.output == "json":
        print(jsontext.dumps(counted, 4))
        return
    print("required size: %d" % counted["required"])
    print("fully allocated size: %d" % counted["fully-allocated"])
    if "bitmaps" in counted:
        print("bitmaps size: %d" % counted["bitmaps"])


COMMANDS = {"measure": Command(
    "measure", "[--size SIZE | IMAGE]",
    "Tell how large the file of a new image becomes, with the data of IMAGE or none, and "
    "when all of the disk has been written.",
    [cli.FORMAT,
     Option("O", "target-format", "the format of the new image (default raw)", "FORMAT"),
     Option("o", "options", "KEY=VALUE,...: its options; help lists them", "OPTIONS",
            True),
     Option("s", "size", "of a new image with an empty disk of this size", "SIZE"),
     Option("l", "snapshot", "measure this internal snapshot of IMAGE", "SNAPSHOT"),
     cli.OUTPUT, cli.SHARE, *cli.IMAGE],
    measure, 0, 1)}
