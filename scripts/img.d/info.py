# SPDX-License-Identifier: BSD-3-Clause
"""info: the plugin describes images (info=), as qemu-img does in JSON.  Here that becomes
text, and raw files are described."""

import os
import stat

import cli
import images
import jsontext
import programs
from cli import Command, Failure, Option

PREFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
BLOCK = 512                     # bytes of st_blocks
# How the plugin ends what it says of a file that was cut off.
LEFT_OUT = "snapshots are not described"


def describe(image, chain=False, more=(), fds=()):
    """What the plugin says about a qcow2 image, or about each image of its chain.  MORE
    parameters, for which it gets descriptors FDS, save starting it twice."""
    report = programs.text_file()
    # No passphrase is needed.  (The names in the answer are relative if this one is.)
    result = programs.prepare(
        ["file=" + image.name, *image.parameters()[1:], "info=/dev/fd/%d" % report,
         "serve=false", *(["info-chain=true"] if chain else []), *more],
        [report, *fds], True)
    text = programs.text_of(report)
    os.close(report)
    if result.status != 0:
        raise Failure(programs.reason(result.said))
    for line in result.said.split("\n"):
        if line.endswith(LEFT_OUT):
            cli.tell(programs.reason(line))
    return jsontext.loads(text)


def can_have_bitmaps(image):
    return image.format == "qcow2" and \
        describe(image)["format-specific"]["data"]["compat"] != "0.10"


def bitmaps_of(image):
    """A list of objects with name, granularity and flags."""
    return describe(image)["format-specific"]["data"].get("bitmaps", [])


def describe_raw(image):
    if image.uri:
        import clients
        size = clients.Served(image).size()
        return {"virtual-size": size, "filename": image.given, "format": "raw",
                "dirty-flag": False}
    found = os.stat(image.name)
    with cli.About(image.given), open(image.name, "rb") as f:
        size = images.round_up(f.seek(0, os.SEEK_END), images.SECTOR)
    protocol = "host_device" if stat.S_ISBLK(found.st_mode) else "file"
    actual = found.st_blocks * BLOCK
    child = {"children": [], "virtual-size": size, "filename": image.given, "format": protocol,
             "actual-size": actual, "format-specific": {"type": protocol, "data": {}},
             "dirty-flag": False}
    return {"children": [{"name": "file", "info": child}],
            "virtual-size": size, "filename": image.given, "format": "raw",
            "actual-size": actual, "dirty-flag": False}


def info(o):
    image = images.image_of(o, o.operands[0], o.format)
    if image.format == "raw":
        found = describe_raw(image)
        found = [found] if o.backing_chain else found
    else:
        found = describe(image, o.backing_chain)
    if o.svg:
        import pictures
        pictures.draw_info(o, image, found)
    elif o.output == "json":
        print(jsontext.dumps(found, 4))
    else:
        print("\n\n".join("\n".join(lines_of(f)) for f in
                          (found if o.backing_chain else [found])))
    return 0


# --- Text.

def lines_of(found):
    yield "image: " + found["filename"]
    yield "file format: " + found["format"]
    yield "virtual size: %s (%d bytes)" % (readable(found["virtual-size"]),
                                           found["virtual-size"])
    if "actual-size" in found:
        yield "disk size: " + readable(found["actual-size"])
    if found.get("encrypted"):
        yield "encrypted: yes"
    if "cluster-size" in found:
        yield "cluster_size: %d" % found["cluster-size"]
    if found.get("dirty-flag"):
        yield "cleanly shut down: no"
    if "backing-filename" in found:
        name, full = found["backing-filename"], found.get("full-backing-filename")
        yield "backing file: %s%s" % (
            name, " (actual path: %s)" % full if full and full != name else "")
    if "backing-filename-format" in found:
        yield "backing file format: " + found["backing-filename-format"]
    if found.get("snapshots"):
        yield "Snapshot list:"
        yield from snapshot_lines(found["snapshots"])
    data = (found.get("format-specific") or {}).get("data")
    if data:
        yield "Format specific information:"
        yield from tree(data, 1)
    for child in found.get("children", ()):
        yield from child_lines(child, "/")


def child_lines(child, path):
    path += child["name"]
    about = child["info"]
    yield "Child node '%s':" % path
    yield "    filename: " + about["filename"]
    yield "    protocol type: " + about["format"]
    yield "    file length: %s (%d bytes)" % (readable(about["virtual-size"]),
                                              about["virtual-size"])
    if "actual-size" in about:
        yield "    disk size: " + readable(about["actual-size"])
    data = (about.get("format-specific") or {}).get("data")
    if data:
        yield "    Format specific information:"
        yield from tree(data, 2)
    for deeper in about.get("children", ()):
        yield from ("    " + line for line in child_lines(deeper, path + "/"))


def tree(value, depth):
    """Objects and lists, indented; in the names, - becomes a space."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        name = "    " * depth + ("[%d]:" % key if isinstance(key, int)
                                 else key.replace("-", " ") + ":")
        if isinstance(item, (dict, list)):
            yield name
            yield from tree(item, depth + 1)
        else:
            yield "%s %s" % (name, str(item).lower() if isinstance(item, bool) else item)


def readable(n):
    """With three digits, as qemu-img."""
    from math import frexp
    exponent = max(0, (frexp(n / (1000 / 1024))[1] - 1) // 10)
    return "%0.3g %sB" % (n / (1 << exponent * 10), PREFIXES[exponent])


def snapshot_lines(snapshots):
    import time
    yield "%-7s %-16s %8s %19s %15s %10s" % ("ID", "TAG", "VM_SIZE", "DATE", "VM_CLOCK",
                                              "ICOUNT")
    for s in snapshots:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(s["date-sec"]))
        seconds = s["vm-clock-sec"]
        clock = "%04d:%02d:%02d.%03d" % (seconds // 3600, seconds // 60 % 60,
                                         seconds % 60, s["vm-clock-nsec"] // 1000000)
        yield "%-7s %-16s %8s %19s %15s %10s" % (
            s["id"], s["name"], readable(s["vm-state-size"]), when, clock,
            s.get("icount", "--"))


COMMANDS = {"info": Command(
    "info", "IMAGE",
    "Describe an image: format, sizes, backing file, internal snapshots, bitmaps, and "
    "what else its header says.",
    [cli.FORMAT, cli.OUTPUT, cli.SVG, cli.SHARE,
     Option(None, "backing-chain", "describe its backing files too"), *cli.IMAGE],
    info)}
