# SPDX-License-Identifier: BSD-3-Clause
"""Prints what other programs may depend on, a part on each line, as in tests/interface.

usage: interface.py NBDKIT PLUGIN SCRIPTS SYSTEMD WORK

WORK is a directory with JSON files; what is in front of the first dot of a file's name
says what it is.
"""

import json
import os
import re
import subprocess
import sys

nbdkit, plugin, top, work = sys.argv[1:]
lines = set()


def said(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


# --- the plugin

for text in re.sub(r"\n +", " ", said(nbdkit, plugin, "--help")).splitlines():
    m = re.match(r"\[?([a-z0-9][-a-z0-9]*)=\]?(\S+) ", text)
    if m and m.group(1) != "key":
        for value in re.findall(r"<[^>]*>|[^|]+", m.group(2).removeprefix("[+|-]")):
            lines.add("parameter %s=%s" % (m.group(1), value))
        default = re.search(r"\(default (\S+)\)\.$", text)
        if default:
            lines.add("parameter %s=%s is the default" % (m.group(1), default.group(1)))
for text in said(nbdkit, plugin, "--dump-plugin").splitlines():
    if text.startswith("qcow2_"):
        lines.add("--dump-plugin " + text.partition("=")[0])

# --- the programs

lines.add("program nbdkit-qcow2-img")
with open(os.path.join(top, "img/names.mk"), encoding="utf-8") as f:
    for name in re.search(r"^own_names = (.*)", f.read(), re.M).group(1).split():
        lines.add("program " + name)
img = os.path.join(os.path.dirname(plugin), "../../img/nbdkit-qcow2-img")
for name in re.findall(r"^  ([a-z][a-z-]*) ", said(img, "--help"), re.M):
    for option in re.findall(r"^  (-.*?)(?:  |$)", said(img, name, "--help"), re.M):
        lines.add("nbdkit-qcow2-img %s %s" % (name, option))
with open(os.path.join(top, "img/policy.c"), encoding="utf-8") as f:
    policy = f.read()
for key, *decisions in re.findall(r'{ "([a-z0-9-]+)", { (\w+), (\w+) } }', policy):
    for built_in, decision in zip(("upload", "strict"), decisions):
        lines.add("policy %s: %s = %s" % (built_in, key, decision.lower()))
for key in re.findall(r'\] = "(max-[a-z-]+)"', policy):
    lines.add("policy: %s, with the code %s" % (key, key.removeprefix("max-")))
for code in re.findall(r'\[HEADER_\w+\] = "([a-z-]+)"', policy) + ["unsupported", "too-slow"]:
    lines.add("policy: always refuses " + code)

# --- systemd

for name in os.listdir(os.path.join(top, "systemd")):
    if re.search(r"\.(socket|timer|service\.in)$", name):
        unit = "unit " + name.removesuffix(".in")
        lines.add(unit)
        with open(os.path.join(top, "systemd", name), encoding="utf-8") as f:
            for setting in re.findall(
                    r"^(?:ListenStream|SocketGroup|EnvironmentFile)=.*", f.read(), re.M):
                lines.add(unit + " " + setting)
with open(os.path.join(top, "systemd", "confinement.in"), encoding="utf-8") as f:
    for setting in re.findall(r"^(?:User|Group|StateDirectory)=.*", f.read(), re.M):
        lines.add("unit *.service " + setting)

# --- JSON

TYPES = {bool: "boolean", int: "number", float: "number", str: "text"}
# The first is what check-report= writes; the second is for --merge of the same version.
FOR_OURSELVES = {("validate", "images[].check"), ("validate", "shard")}


def keys(what, path, value):
    if (what, path) in FOR_OURSELVES:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            keys(what, path + "." * bool(path) + key, inner)
    elif isinstance(value, list):
        for inner in value:
            keys(what, path + "[]" * bool(path), inner)
    elif value is not None:
        lines.add("%s %s: %s" % (what, path, TYPES[type(value)]))


for name in os.listdir(work):
    if name.endswith(".json"):
        with open(os.path.join(work, name), encoding="utf-8") as f:
            keys(name.partition(".")[0], "", json.load(f))

print(*sorted(lines), sep="\n")
