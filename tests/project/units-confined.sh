#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# systemd finds no mistakes in our units, and rates the exposure of the services as 0.5 or
# better (0.3 with systemd 252, 257 and 262).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires systemd-analyze --version
systemd-analyze --help | grep -e --offline > /dev/null || skip "systemd-analyze has no --offline"

source="$srcdir/../systemd"
built="$abs_top_builddir/systemd"

# Units that systemd can load: their program exists, and templates have an instance.
units="$tmp/units"
mkdir "$units"
for service in nbdkit-qcow2@ nbdkit-qcow2-dir; do
  sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "$built/$service.service" \
    >"$units/$service.service"
  cp "$source/$service.socket" "$units"
done

for service in nbdkit-qcow2@disk.qcow2 nbdkit-qcow2-dir; do
  cp "$units/${service/@*/@}.service" "$tmp/$service.service"
  systemd-analyze security --no-pager --offline=true --threshold=5 \
    "$tmp/$service.service" >"$tmp/rating" 2>&1 || { cat "$tmp/rating"; false; }
  tail -n 1 "$tmp/rating"

  systemd-analyze verify --man=no "$units/${service/@*/@}.service" \
    "$units/${service/@*/@}.socket" >"$tmp/mistakes" 2>&1 || :
  # (What is wrong with other units of the host is not our business.)
  if grep nbdkit-qcow2 "$tmp/mistakes"; then fail "systemd does not like the units"; fi
done
