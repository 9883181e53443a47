#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image in a file of another host, behind nbdkit's ssh plugin and an sshd with keys of
# its own: what was flushed is there after our server, that nbdkit, or sshd was killed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/engines.sh"
requires_tools
requires nbdcopy --version
requires "$NBDKIT" ssh --dump-plugin
requires ssh-keygen -A -f "$tmp"
sshd="$(command -v sshd)" || skip "no sshd"
requires_network

engine_ops=600
parts=(nbd sshd)
truncate -s 32M "$tmp/far"
ssh-keygen -q -t ed25519 -N '' -f "$tmp/host"
ssh-keygen -q -t ed25519 -N '' -f "$tmp/user"
echo "[127.0.0.1]:2222 $(cat "$tmp/host.pub")" > "$tmp/known_hosts"
cat > "$tmp/sshd_config" <<END
ListenAddress 127.0.0.1:2222
HostKey $tmp/host
AuthorizedKeysFile $tmp/user.pub
PidFile none
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
END

# answers: is that sshd?
answers ()
{
  ssh-keyscan -p 2222 127.0.0.1 | grep ssh-ed25519
}

start_sshd ()
{
  # As root it wants this directory.
  # shellcheck disable=SC2016
  start_daemon sshd unshare --mount bash -e -c '
    mount -t tmpfs none /run; mkdir /run/sshd; exec "$0" -D -e -f "$1"' \
    "$sshd" "$tmp/sshd_config"
  await_daemon sshd answers
}

start_engine ()
{
  [ -n "${server_pid[sshd]:-}" ] || start_sshd
  PLUGIN=ssh start_nbdkit_as nbd host=127.0.0.1 port=2222 user="$(id -un)" \
    identity="$tmp/user" known-hosts="$tmp/known_hosts" "$tmp/far"
  far_uri="$uri"
}

engine_keeps_what_was_flushed
