#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The manual pages agree with --help about parameters (unit/plugin/params compares --help
# with the code), and with the plugin about --dump-plugin, messages and debug flags.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires "$NBDKIT" --version

pod="$srcdir/../plugin/nbdkit-qcow2-plugin.pod"
operation="$srcdir/../plugin/nbdkit-qcow2-operation.pod"

"$NBDKIT" "$PLUGIN" --help > "$tmp/help.txt"
for key in file l2-cache l2-slice; do
  grep -Eq "^\[?$key=" "$tmp/help.txt"
done

# What --help says of each parameter, SYNOPSIS says in the same words, and PARAMETERS in
# an item for each of its values; the default is the same; and the manual has no others.
/usr/bin/python3 - "$tmp/help.txt" "$pod" <<'END'
import re, sys

help_text, pod = (open(name).read() for name in sys.argv[1:])
faults = []


def section(name):
    return re.search(r"^=head1 %s\n(.*?)^=head1 " % name, pod, re.M | re.S).group(1)


def fault(key, text):
    faults.append("%s: %s" % (key, text))


# key: (values, default).  A line that begins with a space goes on with the one before.
described = {}
lines = re.sub(r"\n +", " ", help_text).splitlines()
for line in lines:
    m = re.match(r"\[?([a-z0-9][-a-z0-9]*)=\]?(\S+) .*?(?:\(default (\S+)\)\.)?$", line)
    if m and m.group(1) not in ("key", "file"):
        described[m.group(1)] = m.groups()[1:]

synopsis = " ".join(section("SYNOPSIS").split())
for key, (values, default) in described.items():
    words = key + "=" + re.sub("[<>]", "", values)
    if not re.search(r"(?<![-a-z0-9])" + re.escape(words) + r"(?=[] ])", synopsis):
        fault(key, "SYNOPSIS does not have " + words)
for key in re.findall(r"([a-z0-9][-a-z0-9]*)=", synopsis):
    if key not in described and key != "file":
        fault(key, "SYNOPSIS has it, and --help does not")

# The table of PARAMETERS has each parameter once.
table = " ".join(re.findall(r"^ .{17}(.*)", section("PARAMETERS"), re.M)).split()
for key in set(table) ^ {*described, "file"} | {k for k in table if table.count(k) > 1}:
    fault(key, "the table of PARAMETERS does not have it once, or --help does not")

# The items of PARAMETERS, each with its text; those without one share the next.
items, waiting = {}, []
for part in re.split(r"\n(?==item )", section("PARAMETERS")):
    m = re.match(r"=item \[?B<([a-z0-9][-a-z0-9]*)=([^>]*)>\]?(\S*)\n(.*)", part, re.S)
    if m:
        key, value, placeholder, text = m.groups()
        waiting.append((key, value + placeholder))
        if text.strip():
            items.update((item, text) for item in waiting)
            waiting = []


def values_of(key, values):
    """Those that need an item, as text of the manual."""
    if values == "true|false":
        return ["true"]
    if values.startswith("[+|-]"):
        return [sign + values[5:].strip("<>") for sign in ("", "+", "-")]
    return re.sub("[<>]", "", values).split("|")


others = {"passphrase": ["-", "+FILENAME", "-FD"]}
for key, (values, default) in described.items():
    wanted = values_of(key, values)
    for value in wanted:
        if (key, value) not in items:
            fault(key, "PARAMETERS has no item for %s=%s" % (key, value))
    known = wanted + others.get(key, []) + ["false"] * (values == "true|false")
    for k, value in items:
        if k == key and value not in known:
            fault(key, "PARAMETERS has an item for %s=%s" % (key, value))
    texts = " ".join(" ".join(text for (k, v), text in items.items() if k == key).split())
    found = re.findall(r"default is (?:C<)?(\w+(?:\.\w+)*)", texts)
    found += [v for (k, v), text in items.items()
              if k == key and "This is the default" in " ".join(text.split())]
    if default and default not in found or len(set(found)) > 1:
        fault(key, "the default is %s in --help, and %s in PARAMETERS" % (default, found))
for key, value in items:
    if key not in described and key != "file":
        fault(key, "PARAMETERS has it, and --help does not")
if "[file=]" not in synopsis or ("file", "PATH") not in items:
    fault("file", "SYNOPSIS or PARAMETERS does not have it")
if len(described) < 40 or len(items) < 60:
    fault("all", "only %d parameters, %d items were found" % (len(described), len(items)))
sys.exit("\n".join(faults) or None)
END

# PARAMETERS is in alphabetical order.  (Of items that share their text, the first counts;
# those of an inner list, which have no key, do not.)
sed -n '/^=head1 PARAMETERS/,/^=head1 [^P]/p' "$pod" | awk '
  /^=item \[?B<[a-z0-9]/ { if (!shared) print; shared = 1; next }
  /^[^=]/ { shared = 0 }' |
  sed 's/^=item \[\{0,1\}B<\([^=]*\)=.*/\1/' > "$tmp/order"
[ "$(wc -l < "$tmp/order")" -gt 40 ]
sort -c "$tmp/order"

# What is not a parameter is refused, by name.
refused "no-such-key" file=/dev/null no-such-key=1

# --dump-plugin: our own lines are all in the manual, and those in the manual
# are all there.
"$NBDKIT" "$PLUGIN" --dump-plugin > "$tmp/dump.txt"
sed -n 's/^\(qcow2_[a-z0-9_]*\)=.*/\1/p' "$tmp/dump.txt" | sort > "$tmp/dump"
sed -n '/^=head1 FEATURES/,/^=head1 DEBUG/p' "$operation" | grep -o 'qcow2_[a-z0-9_]*' |
  sort -u > "$tmp/dump.manual"
diff -u "$tmp/dump" "$tmp/dump.manual"
grep -qx 'magic_config_key=file' "$tmp/dump.txt"
version=$(sed -n 's/^version=//p' "$tmp/dump.txt")
grep -qx "#define PACKAGE_VERSION \"$version\"" "$abs_top_builddir/config.h"

# MESSAGES: what the manual quotes, in pieces between dots and colons, the plugin can
# say.
strings -n 4 "$PLUGIN" > "$tmp/strings"
sed -n '/^=head1 MESSAGES/,/^=back/s/^=item C<\(.*\)>$/\1/p' "$operation" > "$tmp/messages"
[ "$(wc -l < "$tmp/messages")" -ge 5 ]
sed -E 's/"?\.\.\."?|: /\n/g' "$tmp/messages" | sed -E 's/^[:; ]+//; s/[: ]+$//' |
while IFS= read -r piece; do
  grep -qF -- "$piece" "$tmp/strings" || fail "the plugin does not say: $piece"
done

# Debug flags: those that the code exports are those that the manual names.
sed -n 's/.*int qcow2_debug_\([a-z0-9_]*\).*/\1/p' "$srcdir"/../plugin/*.c | sort -u > "$tmp/flags"
grep -o -- '-D qcow2\.[a-z0-9]*' "$operation" | sed 's/.*\.//' | sort -u > "$tmp/flags.manual"
diff -u "$tmp/flags" "$tmp/flags.manual"

# All of it in one place: nothing but what nbdkit looks for is visible.
nm -D --defined-only "$PLUGIN" | awk '{ print $3 }' | sort > "$tmp/visible"
{ echo plugin_init; sed 's/^/qcow2_debug_/' "$tmp/flags"; } | sort > "$tmp/wanted"
diff -u "$tmp/wanted" "$tmp/visible"
