# SPDX-License-Identifier: BSD-3-Clause
"""What the user names: images, their formats, secrets, sizes, and lists of options."""

import os

import programs
from cli import About, Failure

SCHEMES = ("nbd", "nbds", "nbd+unix", "nbds+unix", "nbd+vsock", "nbds+vsock")
FORMATS = ("qcow2", "raw")
SECTOR = 512

QCOW = b"QFI\xfb"


# --- Lists of options, and sizes.

def key_values(text, implied=None):
    """KEY=VALUE,KEY=VALUE,...  A comma in a value is written twice.  A first word
    without = is the value of IMPLIED, any other means KEY=on."""
    found = []
    for i, word in enumerate(split_commas(text)):
        key, equals, value = word.partition("=")
        if not equals and i == 0 and implied:
            key, value = implied, word
        elif not equals:
            value = "on"
        if not key:
            raise Failure("a list of options contains no KEY before a =")
        found.append((key, value))
    return found


def split_commas(text):
    words, word, i = [], "", 0
    while i < len(text):
        if text.startswith(",,", i):
            word += ","
            i += 1
        elif text[i] == ",":
            words.append(word)
            word = ""
        else:
            word += text[i]
        i += 1
    return words + [word] if word or words else []


def asks_for_help(texts):
    """Is this in the lists of options (-o help)?"""
    return any(key in ("help", "?") for text in texts for key, _ in key_values(text))


def show_options(table):
    """Rows of name, parameter of the plugin, what it is."""
    print("Supported options:")
    for name, _, text in table:
        print("  %-20s %s" % (name, text))


DECIMAL = "0123456789"
HEX = DECIMAL + "abcdefABCDEF"
UNITS = {"b": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}


def size_of(text, what="size"):
    """Bytes, as qemu-img reads them: 10G, 0x1000, 1.5M, also 1.M, 0x400k and +1M; K is
    1024."""
    digits = text.lstrip(" \t\n\v\f\r").removeprefix("+")
    is_hex = digits[:2].lower() == "0x"
    shift = UNITS.get(digits[-1:].lower())
    if shift is None or is_hex and digits[-1] in HEX:
        shift = 0
    else:
        digits = digits[:-1]
    whole, point, fraction = digits.partition(".")
    digits = whole[2:] if is_hex else whole
    if is_hex and point or not digits or digits.strip(HEX if is_hex else DECIMAL) or \
            fraction.strip(DECIMAL) or not shift and fraction.strip("0"):
        raise Failure("%s: '%s' is not a size (a number of bytes, or with K, M, G, T, P "
                      "or E)" % (what, text))
    # With the rounding of qemu-img, whose fraction has 64 bits.
    fraction = int(float("0." + (fraction or "0")) * (1 << 64))
    size = (int(digits, 16 if is_hex else 10) << shift) + \
        ((fraction << shift) + (1 << 63) >> 64)
    if size >= 1 << 63:
        raise Failure("%s: '%s' is too large" % (what, text))
    return size


def number_of(text, what, least=0):
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise Failure("%s: '%s' is not a number%s"
                      % (what, text, " of at least %d" % least if least else ""))
    return int(text)


def is_on(key, value):
    if value in ("on", "yes", "true", "y"):
        return True
    if value in ("off", "no", "false", "n"):
        return False
    raise Failure("%s: '%s' is neither on nor off" % (key, value))


# --- Secrets.

LONGEST_SECRET = 32 << 10       # bytes; a pipe has to take all of it


class Secrets:
    """What --object defines: passphrases by id."""

    def __init__(self, objects):
        self.known = {}
        for text in objects:
            given = dict(key_values(text, "qom-type"))
            if given.pop("qom-type", None) != "secret":
                raise Failure("--object %s: only objects of the type secret are known "
                              "(an NBD URI contains what TLS needs)" % text.split(",")[0])
            self.add(given)

    def add(self, given):
        name = given.pop("id", None)
        if not name:
            raise Failure("--object secret: id is missing")
        data, file = given.pop("data", None), given.pop("file", None)
        form = given.pop("format", "raw")
        if given:
            raise Failure("--object secret,id=%s: '%s' is not supported"
                          % (name, next(iter(given))))
        if (data is None) == (file is None):
            raise Failure("--object secret,id=%s: either data or file is required" % name)
        if file is not None:
            with open(file, "rb") as f:
                secret = f.read(1 << 16)
        else:
            secret = os.fsencode(data)
        if form == "base64":
            import base64
            try:
                secret = base64.b64decode(secret)
            except ValueError:
                raise Failure("--object secret,id=%s: not base64" % name) from None
        elif form != "raw":
            raise Failure("--object secret,id=%s: unknown format '%s'" % (name, form))
        if b"\n" in secret or b"\0" in secret:
            raise Failure("--object secret,id=%s: the passphrase contains a newline or a "
                          "zero byte, which nbdkit cannot read (write the file without: "
                          "printf %%s PASSPHRASE)" % name)
        if len(secret) > LONGEST_SECRET:
            raise Failure("--object secret,id=%s: the passphrase is longer than %d bytes"
                          % (name, LONGEST_SECRET))
        self.known[name] = secret

    def get(self, name):
        if name not in self.known:
            raise Failure("there is no secret with the id '%s'" % name)
        return self.known[name]

    def only(self):
        """The one for images that do not name theirs, as a list; or none."""
        return list(self.known.values()) if len(self.known) == 1 else []


class Passphrases:
    """Parameters of the plugin, all called NAME, and the descriptors from which the plugin
    reads them.  (Other users can see the parameters of a process.)"""

    def __init__(self, secrets, name="passphrase"):
        self.parameters, self.fds = [], []
        for secret in secrets:
            self.add(secret, name)

    def add(self, secret, name):
        import fcntl
        read, write = os.pipe()
        os.write(write, secret + b"\n")
        os.close(write)
        # Above those that a server uses itself.
        high = fcntl.fcntl(read, fcntl.F_DUPFD_CLOEXEC, 20)
        os.close(read)
        self.fds.append(high)
        self.parameters.append("%s=-%d" % (name, high))

    def close(self):
        for fd in self.fds:
            os.close(fd)


# --- Images.

def is_uri(name):
    return name.partition(":")[0] in SCHEMES and "://" in name


def check_name(name):
    """The name of a file as it is, or an NBD URI."""
    if not name:
        raise Failure("an image cannot have an empty name")
    if is_uri(name) or "/" in name.partition(":")[0] or ":" not in name:
        return name
    scheme, _, rest = name.partition(":")
    if scheme == "file":
        return rest[2:] if rest.startswith("//") else rest
    import publicname
    shown = publicname.shown(name)
    raise Failure("%s: '%s:' is not supported: use the name of a file (./%s if it "
                  "contains a colon) or an NBD URI" % (shown, scheme, shown))


def path_of(name):
    """The same, from any directory; the secrets of a URI will not be shown."""
    name = check_name(name)
    if not is_uri(name):
        return os.path.abspath(name)
    import publicname
    programs.hide(name, publicname.shown(name))
    return name


class Image:
    """An image that exists, or will.  PARAMETERS are those for opening it that do not
    depend on what is done with it.  SECRETS: of the encrypted ones of its chain, from the
    top; the last one is for all others."""

    def __init__(self, name, format=None, secrets=(), share=False, allow_uri=()):
        self.given = name
        self.name = check_name(name)
        self.uri = is_uri(self.name)
        if self.uri:
            import publicname
            self.given = publicname.shown(name)
        self.path = path_of(name)
        self.secrets = secrets
        self.share = share
        self.allow_uri = allow_uri
        self.instead = []           # of the files that the image names
        if format is not None and format not in FORMATS:
            raise Failure("%s: format '%s' is not supported (only qcow2 and raw): use "
                          "qemu-img" % (name, format))
        self._format = format

    @property
    def format(self):
        if self._format is None:
            self._format = probe(self)
        return self._format

    @property
    def other_data(self):
        """The data file that is used instead of the one that the image names, or None."""
        return next((p.partition("=")[2] for p in self.instead
                     if p.startswith("data-file=")), None)

    def need_qcow2(self, what):
        if self.format != "qcow2":
            raise Failure("%s: raw images do not support %s" % (self.given, what))

    def secrets_below(self, above):
        """Those that are left for the images below the ones that info describes (ABOVE)."""
        encrypted = sum(1 for found in above if found.get("encrypted"))
        return self.secrets[min(encrypted, max(len(self.secrets) - 1, 0)):]

    def parameters(self, writing=False):
        found = ["file=" + self.path] + ["allow-uri=" + u for u in self.allow_uri]
        # NBD has no locks, and qemu-img needs none.
        if self.share or self.uri and writing:
            found.append("lock=false")
        return found + self.instead

    def prepare(self, *parameters, writing=True, fds=(), progress=None):
        """Has the plugin make these changes, or this check.  What the plugin said."""
        passphrases = Passphrases(self.secrets)
        try:
            return programs.prepare(
                [*self.parameters(writing), *passphrases.parameters, *parameters],
                fds=[*passphrases.fds, *fds], readonly=not writing, progress=progress)
        finally:
            passphrases.close()

    def change(self, *parameters, **options):
        """Of the backing files, only those that the change needs are opened."""
        return self.make("serve=false", *parameters, **options)

    def make(self, *parameters, **options):
        """With the whole disk opened."""
        result = self.prepare(*parameters, **options)
        if result.status != 0:
            raise Failure(programs.cause_and_state(result.said))
        return result


def probe(image):
    if image.uri:
        import clients
        head = clients.first_bytes(image, SECTOR)
    else:
        with About(image.given), open(image.name, "rb") as f:
            head = f.read(SECTOR)
    return format_of(head, image.given)


def format_of(head, name):
    if head.startswith(QCOW) and head[4:8] != b"\0\0\0\1":
        return "qcow2"
    other = "qcow" if head.startswith(QCOW) else other_format(head)
    if other:
        raise Failure("%s: format '%s' is not supported (only qcow2 and raw): use "
                      "qemu-img" % (name, other))
    return "raw"


def other_format(head):
    """The name of one that QEMU reads: treating it as raw would not be what the user
    wants.  Or None."""
    import formatmarks
    return next((format.lower() for at, mark, format, cure in formatmarks.load()
                 if (cure == "CONVERT" or format == "LUKS") and head.startswith(mark, at)),
                None)


def image_of(arguments, name, format=None, secrets=None):
    """The image that this operand names, with the options of IMAGE in cli.py."""
    secrets = secrets or Secrets(arguments.object)
    share = getattr(arguments, "force_share", False)
    if not getattr(arguments, "image_opts", False):
        return Image(name, format, secrets.only(), share, arguments.allow_uri)
    if format is not None:
        raise Failure("--image-opts and -f cannot be used together")
    return image_of_options(name, secrets, share, arguments.allow_uri)


# What the image says, too: --image-opts, and the parameter of the plugin.
INSTEAD = (("backing.driver", "backing-format"), ("backing.file.filename", "backing"),
           ("data-file.filename", "data-file"))


def taken_instead(given):
    """What is to be used instead of what the image says."""
    for key in ("backing.file.driver", "data-file.driver"):
        if given.pop(key, "file") not in ("file", "host_device"):
            raise Failure("--image-opts: %s: only files are supported" % key)
    found = []
    for key, parameter in INSTEAD:
        value = given.pop(key, None)
        if value is not None and parameter == "backing-format" and value not in FORMATS:
            raise Failure("--image-opts: %s: only qcow2 and raw are supported" % key)
        if value is not None and parameter != "backing-format":
            value = path_of(value)
        if value is not None:
            found.append("%s=%s" % (parameter, value))
    return found


def image_of_options(text, secrets, share, allow_uri):
    given = dict(key_values(text))
    format = given.pop("driver", given.pop("format", None))
    ids = secret_ids(given)
    driver = given.pop("file.driver", "file")
    prefix = "" if format in ("file", "host_device") else "file."
    if not prefix:
        driver, format = format, "raw"
    name = given.pop(prefix + "filename", None)
    if name is None or driver not in ("file", "host_device"):
        raise Failure("--image-opts: only files are supported (file.filename=NAME); "
                      "use the URI of an NBD export without --image-opts")
    share = share or is_on("force-share", given.pop("force-share", "off"))
    instead = taken_instead(given)
    if given:
        raise Failure("--image-opts: '%s' is not supported (driver, file.driver, "
                      "file.filename, encrypt.key-secret, also after backing., force-share, "
                      "backing.driver, backing.file.filename and data-file.filename are)"
                      % next(iter(given)))
    if not is_uri(name):
        import publicname
        if publicname.is_uri(name):
            check_name(name)
        name = os.path.abspath(name)
    image = Image(name, format, [secrets.get(id) for id in ids] or secrets.only(), share,
                  allow_uri)
    if instead:
        image.need_qcow2("backing files and data files")
    image.instead = instead
    return image


def secret_ids(given):
    """From the top of the chain on; taken out of what is GIVEN."""
    found, node = [], ""
    while not node or any(key.startswith(node) for key in given):
        given.pop(node + "encrypt.format", None)
        if node + "encrypt.key-secret" in given:
            found.append(given.pop(node + "encrypt.key-secret"))
        node += "backing."
    return found


def round_up(n, unit):
    return -(-n // unit) * unit
