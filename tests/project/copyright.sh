#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# debian/copyright and the bill of materials know which licenses the files have that
# autoconf, automake and libtool add to the archive, and agree.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"

PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 - "$srcdir/.." <<'END'
import fnmatch, glob, importlib.util, os, re, sys

top = os.path.normpath(sys.argv[1])
spec = importlib.util.spec_from_file_location("sbom", top + "/scripts/package.d/sbom.py")
sbom = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sbom)

paragraphs, texts = [], set()
for paragraph in open(top + "/debian/copyright").read().split("\n\n"):
    fields = dict(re.findall(r"^(\w[\w-]*):((?:.*)(?:\n .*)*)", paragraph, re.M))
    name, _, text = fields.get("License", "").strip().partition("\n")
    if "Files" in fields:
        paragraphs.append((fields["Files"].split(), name))
    elif name:
        assert text, name
        texts.add(name)
for _, names in paragraphs:
    for name in re.split(r",? and |,? or ", names):
        assert name in texts, "debian/copyright: no text of " + name

PAIRS = [("Autoconf-exception-generic-3.0", "Autoconf exception"),
         ("Autoconf-exception-generic", "Autoconf exception"),
         ("Libtool-exception", "Libtool exception"), ("MIT", "Expat"),
         ("GPL-2.0-or-later", "GPL-2+"), ("GPL-3.0-or-later", "GPL-3+")]


def parts(names):
    """The licenses, in any order."""
    for spdx, debian in PAIRS:
        names = names.replace(spdx, debian)
    for word in ("AND", "OR", "WITH"):
        names = names.replace(" %s " % word, " %s " % word.lower())
    return sorted(re.split(r",? (?:and|or) ", re.sub("[()]", "", names)))


files = [os.path.relpath(f, top)
         for pattern in ("build-aux/*", "m4/*.m4", "aclocal.m4", "configure",
                         "Makefile.in", "*/Makefile.in")
         for f in glob.glob(top + "/" + pattern) if not f.endswith("~")]
assert len(files) > 15, files
for file in sorted(files):
    data = open(os.path.join(top, file), errors="replace").read()
    known = [name for patterns, name in paragraphs
             if any(fnmatch.fnmatchcase(file, p) for p in patterns)]
    print(file, "-", known[-1])
    assert len(known) > 1, "debian/copyright does not know it"
    bill = sbom.license_of(file, data.encode())[0]
    assert parts(known[-1]) == parts(bill), "the bill of materials says: " + bill
    # What the file says itself.
    assert ("GPL-" in bill) == ("GNU General Public License" in data)
    assert ("GPL-3" in bill) == ("either version 3" in data)
    assert ("Libtool-exception" in bill) == ("GNU Libtool, you may include" in data)
    assert ("FSFUL" in bill) == bool(re.search(r"gives\W+unlimited permission", data))
    assert ("MIT" in bill) == ("MIT license" in data)
END
