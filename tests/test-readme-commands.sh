#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Some of README's sections, word for word.  Above all: after an incremental backup
# the overlay is the disk.

. "${srcdir:-$(dirname "$0")}/functions.sh"
requires_tools
requires nbdcopy --version

# section TITLE: the commands of a section of README, which are indented.
section ()
{
  sed -n "/^$1\$/,/^What is refused/p" "$srcdir/../README" |
    awk 'NR > 2 && /^---/ { exit } /^    / { print substr($0, 5) }'
}

# "nbdkit qcow2" is this plugin.
mkdir "$tmp/bin"
cat > "$tmp/bin/nbdkit" <<SCRIPT
#!/bin/bash
args=()
for a; do [ "\$a" != qcow2 ] || a='$PLUGIN'; args+=("\$a"); done
exec '$(command -v "$NBDKIT")' "\${args[@]}"
SCRIPT
chmod +x "$tmp/bin/nbdkit"

# The plugin's path is made absolute here, as the commands run elsewhere.
PLUGIN=$(realpath "$PLUGIN")
ln -s "$(realpath "$srcdir/../scripts")" "$tmp/scripts"
make_image "$tmp/disk.qcow2" 256M
qemu-io -f qcow2 -c 'write -P 1 0 8M' "$tmp/disk.qcow2" > /dev/null

section 'Persistent bitmaps' > "$tmp/commands"
section 'Layers' >> "$tmp/commands"
section 'Many images' >> "$tmp/commands"
section 'How much cache' >> "$tmp/commands"
grep -q bitmap-add= "$tmp/commands"
grep -q apply-changes "$tmp/commands"
grep -q layer: "$tmp/commands"
grep -q dir= "$tmp/commands"
grep -q advise-cache "$tmp/commands"
(cd "$tmp" && PATH="$tmp/bin:$PATH" PLUGIN="$PLUGIN" bash -e -x commands > out)
cat "$tmp/out"
grep -Eq '1048576 +65536 +0 +data' "$tmp/out"

check_clean "$tmp/disk.qcow2"
check_clean "$tmp/monday.qcow2"
qemu-img compare -f qcow2 -F qcow2 "$tmp/disk.qcow2" "$tmp/monday.qcow2"
if qemu-img compare -f raw -F qcow2 "$tmp/full.raw" "$tmp/disk.qcow2"; then
  fail "nothing has changed"
fi
[ "$(qemu-img info -f qcow2 "$tmp/disk.qcow2" | grep -c 'name: \(sunday\|monday\)')" = 2 ]

grep -q '^export="monday.qcow2"' "$tmp/out"
qemu-img compare -f raw -F qcow2 "$tmp/copy.raw" "$tmp/disk.qcow2"
grep -q 'to read at full speed *l2-cache=1M' "$tmp/out"
grep -q '"evictions": 0' "$tmp/out"
