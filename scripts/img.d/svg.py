# SPDX-License-Identifier: BSD-3-Clause
"""Pictures of images, as SVG: map --svg and info --svg.

However large a disk is and however many parts it has, a picture has some thousand shapes:
what is drawn are the cells of grids, and each says what most of it contains.  The texts
have exact numbers.  Nothing but this file is needed to look at a picture: no scripts, no
fonts, no links.
"""

WIDTH, MARGIN = 1000, 20
INSIDE = WIDTH - 2 * MARGIN
LINE = 20                       # between lines of text
CELL = 12                       # the height of a row of cells
COLUMNS, ROWS = 96, 20          # most cells of a strip
PLACES = 40                     # rows of the chart of places
NAME = 60                       # most characters of a name

# Distinct for people who see colours differently, too.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999900",
           "#777777")
ZERO, NOTHING, SHARED, SHARED_BELOW = "#c8c8c8", "#f2f2f2", "#6a51a3", "#b39ddb"

PREFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


# --- Text.

def printable(text, most=NAME):
    """Names are chosen by others: no control characters, no bytes that are not UTF-8, and
    nothing that XML does not have."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= most else text[:most // 2] + "..." + text[-most // 2 + 3:]


def escape(text):
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"),
                              ('"', "&quot;")):
        text = text.replace(character, entity)
    return text


def readable(n):
    i = 0
    while n >= 1024 << 10 * i and i < len(PREFIXES) - 1:
        i += 1
    return "%.4g %sB" % (n / (1 << 10 * i), PREFIXES[i])


def bytes_of(n):
    return "%d bytes (%s)" % (n, readable(n)) if n >= 1024 else "%d bytes" % n


def count_of(n, what):
    return "%d %s%s" % (n, what, "" if n == 1 else "s")


# --- Shapes.

class Picture:
    """Grows downwards, from the title."""

    def __init__(self, title):
        self.title = title
        self.shapes = []
        self.y = MARGIN
        self.heading(title, 18)

    def text(self, text, x=MARGIN, size=13, y=None, anchor="start"):
        self.shapes.append('<text x="%g" y="%g" font-size="%d" text-anchor="%s">%s</text>'
                           % (x, self.y if y is None else y, size, anchor, escape(text)))

    def line(self, text, x=MARGIN):
        self.y += LINE
        self.text(text, x)

    def heading(self, text, size=15):
        self.y += LINE * 1.4
        self.text(text, size=size)
        self.y += 8

    def rectangle(self, x, y, width, height, colour, tip=None):
        end = ">%s</rect>" % ("<title>%s</title>" % escape(tip)) if tip else "/>"
        self.shapes.append('<rect x="%.5g" y="%.5g" width="%.5g" height="%.5g" fill="%s"%s'
                           % (x, y, width, height, colour, end))

    def key(self, colour, text):
        """A line of a legend."""
        self.y += LINE
        self.rectangle(MARGIN, self.y - 11, 16, 12, colour)
        self.text(text, MARGIN + 24)

    def write(self, out):
        height = self.y + MARGIN
        out.write('<?xml version="1.0" encoding="UTF-8"?>\n'
                  '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" '
                  'viewBox="0 0 %d %d" font-family="sans-serif">\n'
                  '<title>%s</title>\n'
                  '<rect width="100%%" height="100%%" fill="#ffffff"/>\n'
                  % (WIDTH, height, WIDTH, height, escape(self.title)))
        out.write("\n".join(self.shapes) + "\n</svg>\n")


class Strip:
    """SIZE bytes (or units) as rows of cells, from left to right and from top to bottom.
    Each cell collects how many of its bytes are of which kind."""

    def __init__(self, size, unit):
        self.step = unit
        while self.step * COLUMNS * ROWS < size:
            self.step *= 2
        self.cells = [{} for _ in range(max(1, -(-size // self.step)))]

    def add(self, start, length, kind):
        end = start + length
        while start < end:
            i = start // self.step
            count = min(end, (i + 1) * self.step) - start
            self.cells[i][kind] = self.cells[i].get(kind, 0) + count
            start += count

    def draw(self, picture, colours):
        """COLOURS of the kinds that are drawn.  How high a cell is filled tells how much
        of it they are; its colour is that of the kind which has most."""
        picture.y += 4
        width = INSIDE / COLUMNS
        for row in range(0, len(self.cells), COLUMNS):
            cells = self.cells[row:row + COLUMNS]
            picture.rectangle(MARGIN, picture.y, len(cells) * width, CELL, NOTHING)
            fills = [self.fill(cell, colours) for cell in cells] + [None]
            first = 0
            for i, fill in enumerate(fills):
                if fill == fills[first]:
                    continue
                if fills[first]:
                    height, colour = fills[first]
                    picture.rectangle(MARGIN + first * width, picture.y + CELL - height,
                                      (i - first) * width, height, colour)
                first = i
            picture.y += CELL + 3

    def fill(self, cell, colours):
        known = {kind: n for kind, n in cell.items() if kind in colours}
        if not known:
            return None
        most = max(known, key=lambda kind: (known[kind], str(kind)))
        # In steps, so that neighbours are alike.
        height = max(1, round(CELL * sum(known.values()) / self.step))
        return min(CELL, height), colours[most]


class Places:
    """Where in a file the parts of a disk are: the disk from left to right, the file from
    bottom to top.  The file's length becomes known while parts are added."""

    def __init__(self, begin, end):
        self.begin = begin
        self.step = max(1, -(-(end - begin) // COLUMNS))
        self.unit = 512
        self.cells = {}         # (column, row, kind): bytes

    def add(self, start, length, offset, kind):
        while offset + length > PLACES * self.unit:
            self.coarsen()
        done = 0
        while done < length:
            column, left = divmod(start + done - self.begin, self.step)
            row, over = divmod(offset + done, self.unit)
            count = min(length - done, self.step - left, self.unit - over)
            key = column, row, kind
            self.cells[key] = self.cells.get(key, 0) + count
            done += count

    def coarsen(self):
        finer, self.cells, self.unit = self.cells, {}, self.unit * 2
        for (column, row, kind), count in finer.items():
            key = column, row // 2, kind
            self.cells[key] = self.cells.get(key, 0) + count

    def draw(self, picture, colours):
        most = {}
        for (column, row, kind), count in sorted(self.cells.items()):
            if count > most.get((column, row), (0, None))[0]:
                most[column, row] = count, kind
        rows = 1 + max((row for _, row in most), default=0)
        height = 6
        width = INSIDE / COLUMNS
        picture.y += 4
        picture.rectangle(MARGIN, picture.y, INSIDE, rows * height, NOTHING)
        for (column, row), (_, kind) in sorted(most.items()):
            picture.rectangle(MARGIN + column * width,
                              picture.y + (rows - 1 - row) * height, width, height,
                              colours[kind])
        picture.y += rows * height
        return rows * self.unit


# --- map

class Layer:
    """What one file of the chain contributes."""

    def __init__(self):
        self.data = self.zero = self.compressed = self.hidden = self.pieces = 0
        self.next = None        # where the last piece ended in the file

    def add(self, run):
        length = run["length"]
        if run["compressed"]:
            self.compressed += length
        if run["data"] and not run["zero"]:
            self.data += length
        elif run["present"]:
            self.zero += length
        if run["data"] and "offset" not in run and not run["compressed"]:
            self.hidden += length
        if run["data"] and "offset" in run:
            self.pieces += run["offset"] != self.next
            self.next = run["offset"] + length

    def describe(self):
        text = "data: %s" % bytes_of(self.data)
        if self.pieces:
            text += " in %s" % count_of(self.pieces, "piece")
        for n, what in ((self.compressed, "compressed: "), (self.hidden, "encrypted: "),
                        (self.zero, "zeros: ")):
            if n:
                text += "; %s%s" % (what, bytes_of(n))
        return text


def map_picture(runs, names, begin, end, title):
    """Of the bytes from BEGIN to END of a disk.  NAMES are those of the files."""
    strip, places = Strip(end - begin, 4096), Places(begin, end)
    layers = [Layer() for _ in names]
    nothing = 0
    last = len(COLOURS) - 1
    for run in runs:
        kind = min(run["depth"], last)
        layer = layers[run["depth"]]
        layer.add(run)
        if not run["present"]:
            nothing += run["length"]
        elif not run["data"] or run["zero"]:
            strip.add(run["start"] - begin, run["length"], "zero")
        else:
            strip.add(run["start"] - begin, run["length"], kind)
        if run["data"] and "offset" in run:
            places.add(run["start"], run["length"], run["offset"], kind)

    colours = dict(enumerate(COLOURS))
    picture = Picture("Where %s is stored" % printable(title))
    picture.heading("The disk: %s" % bytes_of(end - begin))
    strip.draw(picture, {**colours, "zero": ZERO})
    picture.line("Each cell is %s.  It is filled as far as it is stored, with the colour "
                 "of the file that has most." % readable(strip.step))
    if places.cells:
        picture.heading("Its place in the files")
        height = places.draw(picture, colours)
        picture.line("From left to right: the disk.  From bottom to top: %s of a file.  "
                     "A straight diagonal is one piece." % readable(height))
    picture.heading("Files")
    shown = layers[:last] if len(layers) > last + 1 else layers
    for i, layer in enumerate(shown):
        picture.key(COLOURS[min(i, last)], printable(names[i]))
        picture.line(layer.describe(), MARGIN + 24)
    if len(shown) < len(layers):
        rest = Layer()
        for layer in layers[last:]:
            for field in ("data", "zero", "compressed", "hidden", "pieces"):
                setattr(rest, field, getattr(rest, field) + getattr(layer, field))
        picture.key(COLOURS[last], "%d more files" % (len(layers) - last))
        picture.line(rest.describe(), MARGIN + 24)
    picture.key(ZERO, "zeros: %s" % bytes_of(sum(layer.zero for layer in layers)))
    picture.key(NOTHING, "not stored: %s" % bytes_of(nothing))
    return picture


# --- info

SNAPSHOTS = 7                   # most that are drawn
UNITS = 1 << 24                 # most parts of a file whose users are counted

DISK, MANY_SNAPSHOTS, DISK_TOO = 1, 254, 255


class Users:
    """For each unit of a file: who uses it.  0: nobody (metadata, or free); DISK; 2 and
    more: one snapshot; several snapshots; the disk and snapshots.  The disk comes
    first."""

    def __init__(self, length, cluster):
        self.unit = cluster
        while -(-length // self.unit) > UNITS:
            self.unit *= 2
        self.of = bytearray(max(1, -(-length // self.unit)))

    def add(self, runs, user):
        """Bytes on the disk, in the file, and in the file that the disk uses too."""
        becomes = bytearray(range(256))
        becomes[0] = user
        for other in range(1, 254):
            if other != user:
                becomes[other] = DISK_TOO if other == DISK else MANY_SNAPSHOTS
        becomes = bytes(becomes)
        mine = bytearray(len(self.of))
        stored = 0
        for run in runs:
            if run["depth"] == 0 and run["data"]:
                stored += run["length"]
                if "offset" in run:
                    first = run["offset"] // self.unit
                    last = -(-(run["offset"] + run["length"]) // self.unit)
                    mine[first:last] = b"\1" * (min(last, len(mine)) - first)
        shared = 0
        for first, last in stretches(mine):
            part = bytes(self.of[first:last])
            shared += part.count(DISK) + part.count(DISK_TOO)
            self.of[first:last] = part.translate(becomes)
        return stored, mine.count(1) * self.unit, shared * self.unit

    def count(self, user):
        return self.of.count(user) * self.unit


def stretches(marks):
    """(first, last) of the stretches of ones."""
    last = 0
    while True:
        first = marks.find(1, last)
        if first < 0:
            return
        last = marks.find(0, first)
        if last < 0:
            last = len(marks)
        yield first, last


def info_picture(found, maps):
    """FOUND is what info says.  MAPS yields (name, runs): of the disk (None), and of each
    snapshot that is shown."""
    picture = Picture("What %s contains" % printable(found["filename"]))
    length = file_length(found)
    for text in facts(found):
        picture.line(text)
    sizes(picture, found, length)
    if maps is None or not length:
        return picture
    users = Users(length, found.get("cluster-size", 65536))
    rows = []
    for i, (name, runs) in enumerate(maps):
        rows.append((i + DISK, name, *users.add(runs, i + DISK)))
    draw_users(picture, users, length, rows)
    snapshots = found.get("snapshots", [])
    if len(snapshots) > SNAPSHOTS:
        picture.line("%d more snapshots are not shown." % (len(snapshots) - SNAPSHOTS))
    return picture


def draw_users(picture, users, length, rows):
    colours = {user: COLOURS[(user - DISK) % len(COLOURS)] for user, *_ in rows}
    colours[DISK_TOO], colours[MANY_SNAPSHOTS] = SHARED, SHARED_BELOW
    picture.heading("The file: %s" % bytes_of(length))
    strip = Strip(len(users.of), 1)
    for i, cell in enumerate(strip.cells):
        part = users.of[i * strip.step:(i + 1) * strip.step]
        for user in colours:
            count = part.count(user)
            if count:
                cell[user] = count
    strip.draw(picture, colours)
    picture.line("Each cell is %s.  Its colour is that of the user with most of it."
                 % readable(strip.step * users.unit))
    for user, name, stored, placed, shared in rows:
        what = "the disk" if name is None else 'snapshot "%s"' % printable(name)
        picture.key(colours[user], "%s: stored: %s" % (what, bytes_of(stored)))
        only = users.count(user)
        if not placed and stored:
            picture.line("compressed or encrypted: its places are not known", MARGIN + 24)
            continue
        picture.line("in the file: %s; used by nothing else: %s"
                     % (bytes_of(placed), bytes_of(only)), MARGIN + 24)
        if name is not None:
            picture.line("shared with the disk: %s" % bytes_of(shared), MARGIN + 24)
    if len(rows) > 1:
        for user, what in ((DISK_TOO, "the disk and snapshots"),
                           (MANY_SNAPSHOTS, "several snapshots")):
            picture.key(colours[user], "%s: %s" % (what, bytes_of(users.count(user))))
    picture.key(NOTHING, "metadata, compressed or encrypted data, and free space: %s"
                % bytes_of(users.count(0)))


def facts(found):
    yield "format: %s" % found["format"]
    if "backing-filename" in found:
        yield "backing file: %s" % printable(found["backing-filename"])
    data = (found.get("format-specific") or {}).get("data", {})
    if "data-file" in data:
        yield "data file: %s" % printable(data["data-file"])
    if found.get("encrypted"):
        yield "encrypted"
    for key, what in (("snapshots", "snapshot"), ("bitmaps", "bitmap")):
        listed = found.get(key) or data.get(key)
        if listed:
            yield count_of(len(listed), what)


def file_length(found):
    for child in found.get("children", ()):
        if child["name"] == "file":
            return child["info"]["virtual-size"]
    return 0


def sizes(picture, found, length):
    """Bars that can be compared."""
    bars = [("disk", found["virtual-size"]), ("file", length)]
    if "actual-size" in found:
        bars.append(("on the host", found["actual-size"]))
    most = max(1, *(n for _, n in bars))
    picture.heading("Sizes")
    for what, n in bars:
        picture.y += LINE
        picture.text(what)
        picture.rectangle(MARGIN + 90, picture.y - 11, 560, CELL, NOTHING)
        if n:
            picture.rectangle(MARGIN + 90, picture.y - 11, max(1, 560 * n / most), CELL,
                              COLOURS[0])
        picture.text(bytes_of(n), MARGIN + 660)
