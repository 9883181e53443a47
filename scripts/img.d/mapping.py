# SPDX-License-Identifier: BSD-3-Clause
"""map: where the disk is stored.  The plugin writes the lines in JSON (map=); here a part
of them is chosen, or they become text.  The host knows the holes of raw files; those of
other raw disks are asked for over NBD."""

import sys

import cli
import clients
import images
import jsontext
import programs
import rawfile
from cli import Command, Failure, Option


def map_disk(o):
    image = images.image_of(o, o.operands[0], o.format)
    start = images.size_of(o.start_offset or "0", "-s")
    length = images.size_of(o.max_length, "-l") if o.max_length is not None else None
    end = None if length is None else start + length
    if o.snapshot is not None:
        image.need_qcow2("internal snapshots")
    if o.svg:
        import pictures
        pictures.draw_map(o, image, start, end)
        return 0
    whole = not start and length is None and o.snapshot is None
    if whole and image.format == "qcow2" and o.output == "json":
        # However many they are, they do not come here.
        image.change("map=/dev/stdout", writing=False)
        return 0
    names = [image.given]
    if image.format == "raw":
        runs = raw_runs(image)
    elif o.output == "json":
        runs = qcow2_runs(image, o.snapshot)
    else:
        chain, runs = chain_and_runs(image, o.snapshot)
        names = data_names(image, chain)
    runs = part_of(runs, start, end)
    if o.output == "json":
        show_json(runs)
    else:
        show_text(runs, names)
    return 0


def chain_and_runs(image, snapshot=None):
    """What info.describe says, and the runs."""
    import info
    report = programs.text_file()
    chain = info.describe(image, True, parameters(report, snapshot), [report])
    return chain, runs_in(report)


def qcow2_runs(image, snapshot=None):
    report = programs.text_file()
    image.change(*parameters(report, snapshot), writing=False, fds=[report])
    return runs_in(report)


def parameters(report, snapshot):
    return ["map=/dev/fd/%d" % report] + \
        ([] if snapshot is None else ["snapshot=" + snapshot])


def runs_in(report):
    with open(report, encoding="ascii") as f:
        f.seek(0)
        yield from jsontext.lines(f)


def raw_runs(image):
    """Of a raw disk, at most one for each hole or part with data."""
    size = None if image.uri else rawfile.regular_size(image.path)
    if size is not None:
        clients.hold(image, False)
        pieces = rawfile.pieces(image.path)
    else:
        size, pieces = pieces_over_nbd(image)
    if size % images.SECTOR:
        pieces.append((size, -size % images.SECTOR, True))
    last = None
    for at, length, zero in pieces:
        if last and last["zero"] == zero:
            last["length"] += length
            continue
        if last:
            yield last
        last = {"start": at, "length": length, "depth": 0, "present": True, "zero": zero,
                "data": not zero, "compressed": False, "offset": at}
    if last:
        yield last


def pieces_over_nbd(image):
    served = clients.Served(image)
    handle = served.connect()
    size = handle.get_size()
    return size, [(at, length, bool(flags & clients.ZERO)) for at, length, flags in
                  clients.extents(handle, 0, size)]


# What qemu-img says in JSON of a part in which there is nothing.
NOTHING = {"length": 0, "depth": 0, "present": False, "zero": False, "data": False,
           "compressed": False}


def part_of(runs, begin, end):
    found = None
    for run in runs:
        first = max(run["start"], begin)
        last = run["start"] + run["length"]
        if end is not None:
            last = min(last, end)
        if first >= last:
            continue
        if last - first == run["length"]:
            found = run
            yield run
            continue
        found = dict(run, start=first, length=last - first)
        if "offset" in found:
            found["offset"] += first - run["start"]
        yield found
    if found is None:
        yield {"start": begin, **NOTHING}


def show_json(runs):
    before = "["
    for run in runs:
        # As qemu-img writes it: a space after the first brace only.
        sys.stdout.write(before + "{ " + jsontext.dumps(run)[1:])
        before = ",\n"
    print(("[" if before == "[" else "") + "]")


def show_text(runs, names):
    write = sys.stdout.write
    print("%-16s%-16s%-16s%s" % ("Offset", "Length", "Mapped to", "File"))
    for run in runs:
        if run["data"] and "offset" not in run:
            raise Failure("File contains external, encrypted or compressed clusters.")
        if run["data"] and not run["zero"]:
            write("%-16s%-#16x%-16s%s\n" % (hex(run["start"]) if run["start"] else "0",
                                            run["length"],
                                            hex(run["offset"]) if run["offset"] else "0",
                                            names[run["depth"]]))


def names_of(image):
    """For each file of the chain, the name of the file with its data."""
    if image.format == "raw":
        return [image.given]
    import info
    return data_names(image, info.describe(image, True))


def data_names(image, chain):
    names = [data_name(found) for found in chain]
    if image.other_data:
        names[0] = image.other_data
    return names


def data_name(found):
    name = found.get("format-specific", {}).get("data", {}).get("data-file")
    for child in found.get("children", ()):
        if name is not None and child["name"] == "data-file":
            return child["info"]["filename"]
    return name if name is not None else found["filename"]


COMMANDS = {"map": Command(
    "map", "IMAGE",
    "Tell which parts of the disk have data, and where in which file of the backing "
    "chain.",
    [cli.FORMAT, cli.OUTPUT, cli.SHARE,
     Option("s", "start-offset", "begin here", "OFFSET"),
     Option("l", "max-length", "how much of the disk", "SIZE"),
     Option(None, "snapshot", "an internal snapshot, in place of the disk", "NAME"),
     cli.SVG, *cli.IMAGE],
    map_disk)}
