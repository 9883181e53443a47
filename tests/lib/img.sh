# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-img and qemu-img, side by side.  To be sourced after functions.sh.  Both
# work in a directory of their own, theirs/ and ours/, with files of the same names.

requires_tools
requires qemu-io --version

PLUGIN=$(realpath "$PLUGIN")
IMG="${IMG:-$abs_top_builddir/img/nbdkit-qcow2-img}"
cd "$tmp"
mkdir ours theirs private
# Whatever our program stores elsewhere.
export TMPDIR="$tmp/private"

img ()
{
  "$IMG" "$@"
}

# in_both COMMAND...: makes the same file, for example, in both directories.
in_both ()
{
  (cd theirs && "$@")
  (cd ours && "$@")
}

# both ARGUMENT...: both programs exit with the same status, and print the same.
both ()
{
  both_status "$@"
  diff theirs.out ours.out
}

# both_status ARGUMENT...: both exit with the same status, which is then in $status.  If it
# is 1, ours says why in one line.  What they print is in theirs.out and ours.out.
both_status ()
{
  local ours=0

  status=0
  ({ set +x; } 2>&-; cd theirs && qemu-img "$@") > theirs.out 2> theirs.err || status=$?
  ({ set +x; } 2>&-; cd ours && img "$@") > ours.out 2> ours.err || ours=$?
  cat theirs.err ours.err ours.out
  [ "$ours" = "$status" ] || fail "exit status $ours, not $status: $*"
  [ "$status" != 1 ] || [ "$(wc -l < ours.err)" -le 1 ] || fail "more than a line: $*"
  nothing_left
}

nothing_left ()
{
  if compgen -G 'private/*' || compgen -G 'private/.[!.]*'; then fail "left in TMPDIR"; fi
  if compgen -G 'ours/*.qcow2-new*' || compgen -G 'ours/.*qcow2-new*'; then
    fail "left beside the image"
  fi
}

# img_refused PATTERN ARGUMENT...: ours refuses, in one line, with exit status 1.
img_refused ()
{
  local pattern="$1" ours=0
  shift

  ({ set +x; } 2>&-; cd "$tmp/ours" && img "$@") > "$tmp/ours.out" 2> "$tmp/ours.err" ||
    ours=$?
  cat "$tmp/ours.out" "$tmp/ours.err"
  [ "$ours" = 1 ] || fail "exit status $ours: $*"
  [ "$(wc -l < "$tmp/ours.err")" = 1 ] || fail "not one line: $*"
  grep -Eq -- "$pattern" "$tmp/ours.err" || fail "does not say '$pattern': $*"
  (cd "$tmp" && nothing_left)
}

# img_untouched FILE PATTERN ARGUMENT...: the same, and the file in ours/ must not change.
img_untouched ()
{
  local before

  before=$(fingerprint "$tmp/ours/$1")
  img_refused "${@:2}"
  [ "$before" = "$(fingerprint "$tmp/ours/$1")" ] || fail "refused, but changed: ${*:3}"
}

# facts FORMAT FILE: what qemu-img info says that does not depend on how it was made.
facts ()
{
  qemu-img info -U -f "$1" --output=json "$2" | "$python" -c '
import json, sys
found = json.load(sys.stdin)
for key in ("actual-size", "children", "full-backing-filename", "snapshots"):
    found.pop(key, None)
found.get("format-specific", {}).get("data", {}).pop("encrypt", None)
data = found.get("format-specific", {}).get("data", {})
if "bitmaps" in data:
    data["bitmaps"].sort(key=lambda b: b["name"])
print(json.dumps(found, indent=1, sort_keys=True))'
}

# same_image FORMAT FILE: both made the same of it.
same_image ()
{
  diff <(cd theirs && facts "$1" "$2") <(cd ours && facts "$1" "$2") ||
    fail "not the same: $2"
  qemu-img compare -q -f "$1" -F "$1" "theirs/$2" "ours/$2" || fail "other data: $2"
  [ "$1" = raw ] || check_clean "ours/$2"
}
