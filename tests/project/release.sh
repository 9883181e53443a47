#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# scripts/package source makes the same archive twice, with right sums.  Its signatures
# are good, and not those of changed files.  The bill of materials lists each file of the
# archive and each library of the plugin.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires [ -e "$srcdir/../.git" ]
requires git --version
requires gpg --version
requires autoreconf --version
requires objdump --version
[ "$(id -u)" = 0 ] || requires dpkg-query -W libzstd-dev

cd "$tmp"
# In a repository of its own, with what may not be committed yet.  (A clone would fail for
# a repository of another user, and take a shallow one for its origin.)
mkdir clone
git -c safe.directory="*" -C "$srcdir/.." archive HEAD | tar -x -C clone
cp -r "$srcdir/../scripts/package" "$srcdir/../scripts/package.d" clone/scripts
(cd clone && git init -q && git add -f . &&
   git -c user.name=tester -c user.email=tester@example.com commit -q -m "One commit")
package ()
{
  (cd clone && scripts/package source "$@")
}
out=clone/build/package
export GNUPGHOME="$sockdir/gnupg"
mkdir -m 700 "$GNUPGHOME"
stop_agent ()
{
  gpgconf --kill all || :
}

# Without a key.
if package --sign nobody@example.com 2> err; then fail "signed without a key"; fi
grep -q 'gpg has no secret key "nobody@example.com"' err
[ ! -e "$out" ]
package | tee first
grep -q "^== not signed: no key was given" first
mkdir first.d
mv $out/*.tar.gz $out/*.json $out/*.sha256 first.d
[ -z "$(find $out -name '*.asc')" ]

# With one that is made here; in another place, at another time, with another umask.
gpg --quiet --batch --passphrase '' --quick-generate-key tester@example.com default default 1d
mv clone again
ln -s again clone
(umask 077 && package --sign tester@example.com)
stop_agent
for file in first.d/*; do cmp "$file" "$out/${file##*/}"; done
[ "$(find first.d -type f | wc -l)" = 3 ]

cd $out
sha256sum -c --strict ./*.sha256
[ "$(wc -l < "$(echo *.sha256)")" = 2 ]
for file in *.tar.gz *.sha256; do
  gpg --batch --verify "$file.asc" "$file"
  { cat "$file"; echo; } > changed
  if gpg --batch --verify "$file.asc" changed; then fail "a signature of anything"; fi
done
stop_agent

# The bill of materials.
objdump -p "$PLUGIN" | sed -n 's/^ *NEEDED *lib\([a-z]*\)\.so.*/\1/p' > needed
"$python" - ./*.json ./*.tar.gz needed <<'PY'
import hashlib, json, os, sys, tarfile

bill, archive, needed = sys.argv[1:]
with open(bill, encoding="utf-8") as f:
    bill = json.load(f)
with tarfile.open(archive) as tar:
    there = {"./" + m.name.partition("/")[2]:
             hashlib.sha256(tar.extractfile(m).read()).hexdigest()
             for m in tar.getmembers() if m.isfile()}
assert there == {f["fileName"]: f["checksums"][1]["checksumValue"] for f in bill["files"]}
assert len(there) > 500
ids = [x["SPDXID"] for x in bill["files"] + bill["packages"]]
assert len(set(ids)) == len(ids)
for r in bill["relationships"]:
    assert {r["spdxElementId"], r["relatedSpdxElement"]} <= {*ids, "SPDXRef-DOCUMENT"}
main = bill["packages"][0]
assert os.path.basename(archive) == "%s-%s.tar.gz" % (main["name"], main["versionInfo"])
# Sources say themselves what their license is.
for f in bill["files"]:
    if f["fileName"].endswith((".c", ".h", ".py", ".sh", ".am", ".ac", ".mk")) and \
            not f["fileName"].startswith("./build-aux/"):
        assert f["licenseInfoInFiles"] == ["BSD-3-Clause"], f
# What the plugin is linked with.
linked = {r["relatedSpdxElement"].rpartition("-")[2] for r in bill["relationships"]
          if r["relationshipType"] == "DYNAMIC_LINK"}
names = {"z": "zlib", "crypto": "libcrypto", "deflate": "libdeflate", "zstd": "libzstd"}
with open(needed, encoding="utf-8") as f:
    found = {names.get(x, x) for x in f.read().split()} - {"c", "asan", "gcov"}
print(linked, found)
assert found <= linked and linked - found <= {"libdeflate", "libzstd"}
PY

# The license, for programs that look for it in LICENSES.
cmp "$srcdir/../COPYING" "$srcdir/../LICENSES/BSD-3-Clause.txt"
if command -v reuse > /dev/null; then (cd "$srcdir/.." && reuse lint); fi
