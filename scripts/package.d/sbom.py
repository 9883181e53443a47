# SPDX-License-Identifier: BSD-3-Clause
"""What is in a release archive: prints its bill of materials, as SPDX 2.3 in JSON.

usage: sbom.py ARCHIVE NAME VERSION EPOCH

It lists each file with its sums and license, and what the plugin is linked with, which
configure.ac in the archive says.  The same archive always gives the same text; EPOCH is
the date that it tells.
"""

import hashlib
import json
import os
import re
import sys
import tarfile
import time

LICENSE = "BSD-3-Clause"
COPYRIGHT = "2026 nbdkit-qcow2-plugin contributors"
NONE = "NOASSERTION"

# pkg-config's name: (name, license, what it is for the plugin).
LINKED, LOADED, OPTIONAL, HOST = range(4)
LIBRARIES = {
    "nbdkit": ("nbdkit", "BSD-3-Clause", HOST),
    "zlib": ("zlib", "Zlib", LINKED),
    "libcrypto": ("OpenSSL", "Apache-2.0", LINKED),
    "jansson": ("jansson", "MIT", LINKED),
    "libnbd": ("libnbd", "LGPL-2.0-or-later", LOADED),
    "libdeflate": ("libdeflate", "MIT", OPTIONAL),
    "libzstd": ("zstd", "BSD-3-Clause OR GPL-2.0-only", OPTIONAL),
}

# What autoreconf and automake add to the archive, as these files say themselves.
AUTOTOOLS = [
    (r"configure", "FSFUL AND GPL-2.0-or-later WITH Libtool-exception"),
    (r"(.*/)?Makefile\.in", "BSD-3-Clause AND FSFULLR"),
    (r"aclocal\.m4", "FSFULLR AND GPL-2.0-or-later WITH Autoconf-exception-generic"),
    (r"m4/libtool\.m4", "FSFULLR AND GPL-2.0-or-later WITH Libtool-exception"),
    (r"m4/.*\.m4", "FSFULLR"),
    (r"build-aux/config\.(guess|sub)", "GPL-3.0-or-later WITH Autoconf-exception-generic-3.0"),
    (r"build-aux/install-sh", "X11"),
    (r"build-aux/ltmain\.sh",
     "GPL-2.0-or-later WITH Libtool-exception AND (MIT OR GPL-2.0-or-later)"),
    (r"build-aux/.*", "GPL-2.0-or-later WITH Autoconf-exception-generic"),
]


def files_of(archive):
    """Yields (name without the folder, contents)."""
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            if member.isfile():
                yield member.name.partition("/")[2], tar.extractfile(member).read()
            elif not member.isdir():
                sys.exit("%s: neither a file nor a folder" % member.name)


def license_of(name, data):
    """(what it is, whether the file itself says so in the usual form)."""
    for pattern, license in AUTOTOOLS:
        if re.fullmatch(pattern, name):
            return license, False
    found = re.search(rb"SPDX-License-" rb"Identifier: ([A-Za-z0-9.-]+)", data[:2000])
    if found:
        return found.group(1).decode(), True
    return LICENSE, False


def file_entry(number, name, data):
    license, said = license_of(name, data)
    ours = not any(re.fullmatch(pattern, name) for pattern, _ in AUTOTOOLS)
    return {
        "SPDXID": "SPDXRef-File-%d" % number,
        "fileName": "./" + name,
        "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
                      {"algorithm": "SHA256",
                       "checksumValue": hashlib.sha256(data).hexdigest()}],
        "licenseConcluded": license,
        "licenseInfoInFiles": [license if said else NONE],
        "copyrightText": COPYRIGHT if ours else NONE,
    }


def libraries(configure):
    """What configure.ac looks for: [(module, least version or "")]."""
    found = re.findall(r"^PKG_CHECK_MODULES\(\[\w+\], \[(\w+)(?: >= ([0-9.]+))?\]\)", configure,
                       re.M)
    found += [(m, "") for m in re.findall(r"^QCOW2_OPTIONAL\(\[\w+\], \[(\w+)\]", configure,
                                          re.M)]
    if {m for m, _ in found} != set(LIBRARIES):
        sys.exit("configure.ac looks for other libraries than this program knows: %s" % found)
    return sorted(found)


def library_entry(module, least):
    name, license, _ = LIBRARIES[module]
    entry = {
        "SPDXID": "SPDXRef-Package-" + module,
        "name": name,
        "downloadLocation": NONE,
        "filesAnalyzed": False,
        "licenseConcluded": license,
        "licenseDeclared": license,
        "copyrightText": NONE,
        "primaryPackagePurpose": "APPLICATION" if module == "nbdkit" else "LIBRARY",
        "comment": "Not in the archive."
    }
    if least:
        entry["comment"] += "  Version %s or newer." % least
    return entry


def relation(one, kind, other, comment=None):
    entry = {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
    return {**entry, "comment": comment} if comment else entry


def relations(module):
    """Of the plugin with a library."""
    package, library = "SPDXRef-Package", "SPDXRef-Package-" + module
    kind = LIBRARIES[module][2]
    if kind == HOST:
        return [relation(library, "RUNTIME_DEPENDENCY_OF", package, "It loads the plugin.")]
    if kind == LOADED:
        return [relation(library, "RUNTIME_DEPENDENCY_OF", package,
                         "Loaded when an image is behind NBD; the programs use it too.")]
    if kind == OPTIONAL:
        return [relation(package, "DYNAMIC_LINK", library, "If it was there for configure.")]
    return [relation(package, "DYNAMIC_LINK", library)]


def main():
    archive, name, version, epoch = sys.argv[1:]
    contents = list(files_of(archive))
    files = [file_entry(n, *f) for n, f in enumerate(contents, 1)]
    with open(archive, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    found = libraries(dict(contents)["configure.ac"].decode())
    sums = sorted(f["checksums"][0]["checksumValue"] for f in files)
    package = {
        "SPDXID": "SPDXRef-Package",
        "name": name,
        "versionInfo": version,
        "packageFileName": os.path.basename(archive),
        "supplier": NONE,
        "downloadLocation": NONE,
        "filesAnalyzed": True,
        "packageVerificationCode": {
            "packageVerificationCodeValue": hashlib.sha1("".join(sums).encode()).hexdigest()},
        "checksums": [{"algorithm": "SHA256", "checksumValue": digest}],
        "licenseConcluded": LICENSE,
        "licenseDeclared": LICENSE,
        "licenseInfoFromFiles": sorted({x for f in files for x in f["licenseInfoInFiles"]}),
        "copyrightText": COPYRIGHT,
        "primaryPackagePurpose": "SOURCE",
        "comment": "The licenses of other names are those of files that autoconf, automake "
                   "and libtool add.  They are not in what is built.",
    }
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": "%s-%s" % (name, version),
        "documentNamespace": "https://spdx.org/spdxdocs/%s-%s-%s" % (name, version, digest),
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch))),
            "creators": ["Tool: %s-sbom.py-%s" % (name, version)],
        },
        "packages": [package] + [library_entry(*x) for x in found],
        "files": files,
        "relationships": [relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Package")] +
                         [x for module, _ in found for x in relations(module)] +
                         [relation("SPDXRef-Package", "CONTAINS", f["SPDXID"]) for f in files],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
