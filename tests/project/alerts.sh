#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The alert rules of monitoring/ are valid, each state raises its alert, and rules and
# dashboard name only metrics that the server writes.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires promtool --version

cp "$srcdir/../monitoring/alerts.yml" "$srcdir/serve/alerts-test.yml" "$tmp"
promtool check rules "$tmp/alerts.yml"
(cd "$tmp" && promtool test rules alerts-test.yml)

make_image "$tmp/a.qcow2" 8M
start_nbdkit file="$tmp/a.qcow2" stats="$tmp/stats.prom" stats-format=prometheus
stop_nbdkit
sed -n 's/^# TYPE \([^ ]*\) .*/\1/p' "$tmp/stats.prom" | sort -u > "$tmp/there"
# (promtool has no other check of expressions.)  Whatever a panel shows, it shows of which
# server.
"$python" - "$srcdir/../monitoring/dashboard.json" > "$tmp/panels.yml" <<'PY'
import json
import sys

print("groups:\n  - name: panels\n    rules:")
for panel in json.load(open(sys.argv[1]))["panels"]:
    for target in panel["targets"]:
        assert target["legendFormat"].startswith("{{instance}} {{server}}"), panel
        assert 'server=~"$server"' in target["expr"], panel
        expr = target["expr"].replace("$__rate_interval", "5m")
        print("      - record: panel_%d_%s\n        expr: %s" %
              (panel["id"], target["refId"], json.dumps(expr)))
PY
promtool check rules "$tmp/panels.yml"
cat "$srcdir/../monitoring/"* | grep -o 'nbdkit_qcow2_[a-z_]*' | sed 's/_bucket$//' |
  sort -u > "$tmp/named"
[ -s "$tmp/named" ]
unknown=$(comm -13 "$tmp/there" "$tmp/named")
[ -z "$unknown" ] || fail "no such metric: $unknown"
