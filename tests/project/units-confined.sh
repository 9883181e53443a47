#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# systemd finds no mistakes in our units, and rates the exposure of the services as 0.5 or
# better (0.3 with systemd 252, 257 and 262).  Those who can connect to the servers cannot
# open the images; and no image can be named so that it uses what belongs to the server of
# the directory.  A server that cannot start never makes systemd give up its socket, and has
# the time that it needs to end.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/units.sh"
requires systemd-analyze --version
systemd-analyze --help | grep -e --offline > /dev/null || skip "systemd-analyze has no --offline"

source="$srcdir/../systemd"
built="$abs_top_builddir/systemd"

# Units that systemd can load: their program exists, and templates have an instance.
units="$tmp/units"
mkdir "$units"
for service in nbdkit-qcow2@ nbdkit-qcow2-dir nbdkit-qcow2-backup@; do
  sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "$built/$service.service" \
    >"$units/$service.service"
done
cp "$source"/*.socket "$source"/*.timer "$units"

# What the manual adds to a service, so that log= and stats= can write.
mkdir "$units/nbdkit-qcow2@.service.d"
{
  echo '[Service]'
  sed -nE 's/.*S<C<((Log[a-z]*Directory|ReadWrite[A-Za-z]*)=[^>]+)>>.*/\1/p' \
    "$srcdir/../plugin/nbdkit-qcow2-operation.pod"
} >"$units/nbdkit-qcow2@.service.d/log.conf"
[ "$(wc -l <"$units/nbdkit-qcow2@.service.d/log.conf")" = 3 ]

for service in nbdkit-qcow2@disk.qcow2 nbdkit-qcow2-dir nbdkit-qcow2-backup@disk.qcow2; do
  cp "$units/${service/@*/@}.service" "$tmp/$service.service"
  systemd-analyze security --no-pager --offline=true --threshold=5 \
    "$tmp/$service.service" >"$tmp/rating" 2>&1 || { cat "$tmp/rating"; false; }
  tail -n 1 "$tmp/rating"

  systemd-analyze verify --man=no "$units/${service/@*/@}.service" \
    "$units/${service/@*/@}".[st][oi]* >"$tmp/mistakes" 2>&1 || :
  # (What is wrong with other units of the host is not our business.)
  if grep nbdkit-qcow2 "$tmp/mistakes"; then fail "systemd does not like the units"; fi
done

# has UNIT KEY=VALUE
has ()
{
  [ "$(unit_value "$1" "${2%%=*}")" = "${2#*=}" ] || fail "${1##*/}: not $2"
}

has "$built/nbdkit-qcow2-backup@.service" RestrictAddressFamilies=AF_UNIX
has "$built/nbdkit-qcow2@.service" RestrictAddressFamilies=none
# Clients are in the group of the sockets, and in none of the service.
for service in nbdkit-qcow2@ nbdkit-qcow2-dir; do
  for setting in User=nbdkit-qcow2 Group=nbdkit-qcow2 SupplementaryGroups= UMask=0077 \
                 StateDirectory=nbdkit-qcow2 StateDirectoryMode=0700; do
    has "$built/$service.service" "$setting"
  done
  for setting in SocketGroup=nbdkit-qcow2-clients SocketMode=0660; do
    has "$source/$service.socket" "$setting"
  done
done
for service in nbdkit-qcow2@ nbdkit-qcow2-dir; do
  has "$built/$service.service" Restart=on-failure
  # By default 5 starts in 10 seconds are too many.
  pause="$(unit_value "$built/$service.service" RestartSec)"
  [ "${pause%s}" -gt 2 ]
  patience="$(sed -n 's/^#define PATIENCE_MS //p' "$source/../plugin/ending.c")"
  minutes="$(unit_value "$built/$service.service" TimeoutStopSec)"
  [ $((${minutes%min} * 60000)) -gt $((2 * patience)) ]
  # nbdkit before 1.34 aborts when a client vanishes.
  "$NBDKIT" --version | grep -vE ' 1\.(32|33)\.' ||
    grep -E '^ExecStart=[^ ]* -t 1 ' "$built/$service.service"
done
if [ "$(id -u)" = 0 ] && systemd-sysusers --help | grep -e --root > /dev/null; then
  mkdir -p "$tmp/root/etc" "$tmp/root/usr/lib/sysusers.d"
  cp "$source/nbdkit-qcow2.conf" "$tmp/root/usr/lib/sysusers.d"
  systemd-sysusers --root="$tmp/root"
  cat "$tmp/root/etc/"{passwd,group}
  gid="$(sed -n 's/^nbdkit-qcow2:[^:]*:\([0-9]*\):$/\1/p' "$tmp/root/etc/group")"
  grep "^nbdkit-qcow2:[^:]*:[0-9]*:$gid:" "$tmp/root/etc/passwd"
  grep '^nbdkit-qcow2-clients:[^:]*:[0-9]*:$' "$tmp/root/etc/group"
fi

# Whatever %i is.
for setting in service:EnvironmentFile service:LoadCredential socket:ListenStream; do
  file="$source/nbdkit-qcow2@.${setting/:*/}"
  [ -e "$file" ] || file="$built/${file##*/}"
  pattern="$(unit_value "$file" "${setting#*:}")"
  [[ "$pattern" = *%i* ]]
  name="$(unit_value "${file/@/-dir}" "${setting#*:}")"
  [ -n "$name" ]
  # shellcheck disable=SC2053
  if [[ "$name" = ${pattern/\%i/*} ]]; then fail "an image can use $name"; fi
done
