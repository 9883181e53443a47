#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# lab/dashboard draws each panel of monitoring/dashboard.json: what clients do is in it, and
# the state of an image that is corrupt.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires gnuplot --version
requires prometheus --version

export NBDKIT
dashboard ()
{
  "$srcdir/../lab/dashboard" --plugin "$PLUGIN" "$@"
}

dashboard --help | grep -e --seconds > /dev/null || fail "no help"
dashboard --seconds 15 --out "$tmp/dashboard.svg"
"$python" - "$tmp/dashboard.svg" "$srcdir/../monitoring/dashboard.json" <<'PY'
import json
import sys
import xml.dom.minidom

document = xml.dom.minidom.parse(sys.argv[1])
words = ["".join(n.data for n in t.childNodes if n.nodeType == n.TEXT_NODE).strip() +
         "".join(c.firstChild.data for c in t.getElementsByTagName("tspan") if c.firstChild)
         for t in document.getElementsByTagName("text")]
panels = [panel["title"] for panel in json.load(open(sys.argv[2]))["panels"]]
for wanted in panels + ["vm.prom web.qcow2 read", "ci.prom disk write",
                        "vm.prom old.qcow2 corrupt", "vm.prom db.qcow2 used"]:
    assert any(wanted in word for word in words), (wanted, words)
PY
for wrong in '--seconds 0' '--seconds x' more; do
  # shellcheck disable=SC2086
  if dashboard --out "$tmp/wrong.svg" $wrong; then fail "accepted: $wrong"; fi
done
[ ! -e "$tmp/wrong.svg" ]
